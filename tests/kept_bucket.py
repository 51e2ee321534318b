"""A bucket that tests share, whose objects are put back after each of them."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from toolformer_ops.local.object_store import ObjectStoreAddress


@dataclass(frozen=True)
class KeptObject:
    """An object as it was when the bucket was kept."""

    content: bytes
    metadata: dict[str, str]
    stamp: tuple[str, Any]
    """The ETag, and when S3 took the object: an object with both is untouched."""


@dataclass
class KeptBucket:
    """A bucket and the objects that it had when `keep` was called."""

    address: ObjectStoreAddress
    name: str = field(default_factory=lambda: f"kept-{uuid.uuid4().hex[:12]}")
    objects: dict[str, KeptObject] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = self.address.client()
        self.client.create_bucket(Bucket=self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of `Settings` that lead to it."""
        return {
            "s3_endpoint_url": self.address.endpoint,
            "s3_access_key_id": SecretStr(self.address.access_key),
            "s3_secret_access_key": SecretStr(self.address.secret_key),
            "s3_bucket": self.name,
        }

    def keep(self) -> None:
        """Remember every object, to be put back by `restore`."""
        for key, stamp in self._stamps().items():
            answer = self.client.get_object(Bucket=self.name, Key=key)
            self.objects[key] = KeptObject(answer["Body"].read(), answer["Metadata"], stamp)

    def restore(self) -> None:
        """Remove what came, and put back what went or changed."""
        stamps = self._stamps()
        for key in stamps.keys() - self.objects.keys():
            self.client.delete_object(Bucket=self.name, Key=key)
        changed = [key for key, kept in self.objects.items() if stamps.get(key) != kept.stamp]
        for key in changed:
            kept = self.objects[key]
            self.client.put_object(Bucket=self.name, Key=key, Body=kept.content, Metadata=kept.metadata)
        stamps = self._stamps() if changed else {}
        for key in changed:
            kept = self.objects[key]
            self.objects[key] = KeptObject(kept.content, kept.metadata, stamps[key])

    def remove(self) -> None:
        """Remove the bucket with its objects."""
        for key in self._stamps():
            self.client.delete_object(Bucket=self.name, Key=key)
        self.client.delete_bucket(Bucket=self.name)

    def _stamps(self) -> dict[str, tuple[str, Any]]:
        stamps = {}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            for item in page.get("Contents", []):
                stamps[item["Key"]] = (item["ETag"], item["LastModified"])
        return stamps


@contextmanager
def kept_bucket(address: ObjectStoreAddress) -> Iterator[KeptBucket]:
    """A new bucket, removed afterwards."""
    bucket = KeptBucket(address)
    try:
        yield bucket
    finally:
        bucket.remove()
