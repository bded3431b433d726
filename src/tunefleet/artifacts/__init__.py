"""Files as artifacts: digests, manifests, content-addressed stores, and safe unpacking of archives.

Knows only files and bytes: no database, no artifact names, and not what the files mean. Needs the standard library and
filelock; the stores for S3, Google and Azure (`artifacts.s3`, `gcs`, `azure`) are imported on demand and need the
library of their service.
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
