"""Files as artifacts: digests, manifests, content-addressed stores, archives that are unpacked with care.

Knows files and bytes only: no database, no names of artifacts, and not what the files mean. Standard library and
filelock; the store in S3 (`artifacts.s3`) is imported by who wants it, speaks to its bucket and needs boto3.
"""

from __future__ import annotations

from tunefleet.artifacts.archive import UnpackLimits, is_archive, is_packed, unpack
from tunefleet.artifacts.blobs import BlobStore, Link, NoRoomError
from tunefleet.artifacts.files import begin_writing, disk_free, fsync_dir, hash_file, replace_file
from tunefleet.artifacts.folder import FolderStore
from tunefleet.artifacts.intake import Intake
from tunefleet.artifacts.manifest import (
    LocalFile,
    check_files,
    check_path,
    is_digest,
    manifest_digest,
    scan,
    scan_size,
    target_path,
)
from tunefleet.artifacts.packing import Packing, pack
from tunefleet.artifacts.upload import Upload

__all__ = [
    "BlobStore",
    "FolderStore",
    "Intake",
    "Link",
    "LocalFile",
    "NoRoomError",
    "Packing",
    "UnpackLimits",
    "Upload",
    "begin_writing",
    "check_files",
    "check_path",
    "disk_free",
    "fsync_dir",
    "hash_file",
    "is_archive",
    "is_digest",
    "is_packed",
    "manifest_digest",
    "pack",
    "replace_file",
    "scan",
    "scan_size",
    "target_path",
    "unpack",
]
