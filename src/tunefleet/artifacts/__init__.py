"""Files as artifacts: digests, manifests, content-addressed stores, archives that are unpacked with care.

Knows files and bytes only: no database, no names of artifacts, and not what the files mean. Standard library and
filelock; the stores in S3, Google's and Microsoft's clouds (`artifacts.s3`, `gcs`, `azure`) are imported by who wants
them, speak to their service and need its library.
"""

from __future__ import annotations

from tunefleet.artifacts.archive import UnpackLimits, is_archive, is_packed, unpack
from tunefleet.artifacts.blobs import BlobStore, Link, NoRoomError
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
from tunefleet.artifacts.shared import SharedFolderStore
from tunefleet.artifacts.upload import Upload
from tunefleet.fsutil import begin_writing, disk_free, hash_file, replace_file, replacing, sync_path, write_private

__all__ = [
    "BlobStore",
    "FolderStore",
    "Intake",
    "Link",
    "LocalFile",
    "NoRoomError",
    "Packing",
    "SharedFolderStore",
    "UnpackLimits",
    "Upload",
    "begin_writing",
    "check_files",
    "check_path",
    "disk_free",
    "hash_file",
    "is_archive",
    "is_digest",
    "is_packed",
    "manifest_digest",
    "pack",
    "replace_file",
    "replacing",
    "scan",
    "scan_size",
    "sync_path",
    "target_path",
    "unpack",
    "write_private",
]
