"""Uploads a folder to a bucket, downloads one, or removes an object, with the vendor's own client.

    buckets.py s3|azure ENDPOINT upload|download|remove FOLDER BUCKET/PATH
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class S3:
    def __init__(self, endpoint, bucket):
        import boto3
        from botocore.config import Config

        keys = {"aws_access_key_id": "tests", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        once = Config(max_pool_connections=8, request_checksum_calculation="when_required")
        self.client = boto3.client("s3", endpoint_url=endpoint, config=once, **keys)
        self.bucket = bucket

    def make(self):
        self.client.create_bucket(Bucket=self.bucket)

    def put(self, key, value):
        self.client.put_object(Bucket=self.bucket, Key=key, Body=value)

    def get(self, key):
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def remove(self, key):
        self.client.delete_object(Bucket=self.bucket, Key=key)

    def list(self, prefix):
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
            yield from (item["Key"] for item in page.get("Contents", []))


class Azure:
    def __init__(self, endpoint, container):
        from azure.storage.blob import ContainerClient

        named = {"account_name": ACCOUNT, "account_key": KEY}
        self.client = ContainerClient(endpoint, container, credential=named)

    def make(self):
        if not self.client.exists():
            self.client.create_container()

    def put(self, key, value):
        self.client.upload_blob(key, value, overwrite=True)

    def get(self, key):
        return self.client.download_blob(key).readall()

    def remove(self, key):
        self.client.delete_blob(key)

    def list(self, prefix):
        return self.client.list_blob_names(name_starts_with=prefix)


def files(folder):
    for directory, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(directory, name), folder)


def upload(bucket, folder, prefix):
    def one(path):
        with open(os.path.join(folder, path), "rb") as file:
            bucket.put(prefix + path, file.read())

    bucket.make()
    return one, files(folder)


def download(bucket, folder, prefix):
    def one(key):
        path = os.path.join(folder, key[len(prefix) :])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(bucket.get(key))

    # an empty object whose name ends in a slash marks a directory
    return one, (key for key in bucket.list(prefix) if not key.endswith("/"))


def main(kind, endpoint, what, folder, path):
    name, _, prefix = path.partition("/")
    bucket = {"s3": S3, "azure": Azure}[kind](endpoint, name)
    if what == "remove":
        bucket.remove(prefix)
        return
    prefix = prefix and prefix + "/"
    one, names = {"upload": upload, "download": download}[what](bucket, folder, prefix)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, names))


main(*sys.argv[1:])
