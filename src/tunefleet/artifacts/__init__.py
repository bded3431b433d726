"""Files as artifacts: digests, manifests, a content-addressed folder, archives that are unpacked with care.

Knows files and bytes only: no network, no database, no names of artifacts, and not what the files mean. Standard
library and filelock.
"""

from __future__ import annotations

from tunefleet.artifacts.archive import UnpackLimits, is_archive, is_packed, unpack
from tunefleet.artifacts.blobs import BlobStore, Upload
from tunefleet.artifacts.files import disk_free, fsync_dir, hash_file, replace_file
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

__all__ = [
    "BlobStore",
    "Intake",
    "LocalFile",
    "Packing",
    "UnpackLimits",
    "Upload",
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
