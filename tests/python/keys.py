"""Creates access keys of a moto server that checks them: the first ones, and a bucket, or new ones that replace others.

    keys.py ENDPOINT start BUCKET FOLDER
    keys.py ENDPOINT rotate ID SECRET
"""

import json
import os
import sys
import urllib.request

import boto3


def client(service, endpoint, keys):
    named = {"aws_access_key_id": keys[0], "aws_secret_access_key": keys[1], "region_name": "us-east-1"}
    return boto3.client(service, endpoint_url=endpoint, **named)


def created(iam):
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


def start(endpoint, bucket, folder):
    s3, iam = (client(service, endpoint, ("none", "none")) for service in ("s3", "iam"))
    s3.create_bucket(Bucket=bucket)
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                s3.put_object(Bucket=bucket, Key=os.path.relpath(path, folder), Body=file.read())
    iam.create_user(UserName="reader")
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [everything]})
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=policy)
    keys = created(iam)
    # from now on, keys are checked
    plain = {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(endpoint + "/moto-api/reset-auth", b"0", plain, method="POST"))
    return keys


def rotate(endpoint, *old):
    keys = created(client("iam", endpoint, old))
    client("iam", endpoint, keys).delete_access_key(UserName="reader", AccessKeyId=old[0])
    try:
        client("s3", endpoint, old).list_buckets()
    except Exception:
        return keys
    sys.exit("the server accepts the old keys")


endpoint, what, *args = sys.argv[1:]
print(*{"start": start, "rotate": rotate}[what](endpoint, *args))
