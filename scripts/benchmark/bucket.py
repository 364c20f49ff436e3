"""Serves a bucket of moto with an array of COUNT chunks: bucket.py COUNT. Prints the address when the chunks exist, and
then, for each line of input, the number of listings so far. Runs until it is killed."""
import logging
import os
import sys

os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_DEFAULT_REGION="us-east-1")

from moto.s3.models import s3_backends
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from stores import CHUNK, document

BUCKET, PREFIX = "bench", "many"
listings = 0


def count_listings():
    """Makes moto count the listings that it answers."""
    answer = S3Response.list_objects_v2

    def counted(self):
        global listings
        listings += 1
        return answer(self)
    S3Response.list_objects_v2 = counted


def remember_names(backend):
    """Caches the listing, since moto scans all keys for each page."""
    ask, known = backend.list_objects, {}

    def remembered(bucket, *arguments, **options):
        what = (bucket.name, *arguments, *sorted(options.items()))
        return known[what] if what in known else known.setdefault(what, ask(bucket, *arguments, **options))
    backend.list_objects = remembered


def main():
    count = int(sys.argv[1])
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    count_listings()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")
    backend.put_object(BUCKET, f"{PREFIX}/.zarray", document([count * CHUNK], [CHUNK]).encode())
    for i in range(count):
        backend.put_object(BUCKET, f"{PREFIX}/{i}", bytes(CHUNK))
    remember_names(backend)
    host, port = server.get_host_and_port()
    print(f"ready http://{host}:{port} s3://{BUCKET}/{PREFIX}", flush=True)
    for _ in sys.stdin:
        print(listings, flush=True)


if __name__ == "__main__":
    main()
