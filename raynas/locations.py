"""Local paths and URIs: telling them apart, opening them, and keeping credentials out of them.

A location is printed, stored in run directories and handed to workers. So a URI that holds a credential is refused
wherever one comes in: credentials come from the environment, a profile file or the machine's role.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from raynas.errors import UserError

if TYPE_CHECKING:
    from pyarrow import fs

SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")

OPTIONS = (
    *("region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion", "tls_ca_file_path"),
    *("tls_ca_dir_path", "tls_verify_certificates", "force_virtual_addressing", "background_writes", "smart_defaults"),
    *("check_directory_existence_before_creation", "retry_limit_seconds", "project_id"),
    *("enable_tls", "blob_storage_authority", "dfs_storage_authority", "credential_kind", "tenant_id", "client_id"),
    *("user", "replication", "buffer_size", "default_block_size", "kerb_ticket"),
)
"""What may stand after a URI's question mark: of pyarrow's options all but those that are secrets."""

NO_CREDENTIALS = (
    "a location is printed and stored and must hold no credentials, nor options that raynas does not know: leave them "
    "out, and give credentials as the store's own tools take them: in the environment (variables AWS_*, GOOGLE_*, "
    "AZURE_*), a profile file, or the machine's role (docs/results.md)"
)

_START = re.compile(r"(?<![A-Za-z0-9+.\-])([A-Za-z][A-Za-z0-9+.\-]*):/+")
_AUTHORITY = re.compile(r"[^/?#\s,\[\]{}'\"@]*")
_WORD = re.compile(r"[^\s'\"]*")
_WITH_USER = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")  # a name before the @ is an account or a container
_SECRET = re.compile("key|secret|token|sig|pass|cred|auth", re.IGNORECASE)


def is_uri(location: str) -> bool:
    """Whether it names a filesystem too, like `s3://bucket/folder`; a malformed URI is one, and no local path."""
    return _START.match(location.lstrip(" \t\"'<")) is not None


def holds_credentials(text: str) -> bool:
    """Whether a text is or contains a URI with a user and password, or with an option that may be a secret.

    It errs on the safe side: URIs are told by their start alone, however malformed the rest is.
    """
    return _first_with_credentials(text) is not None


def refuse_credentials(location: str, what: str = "") -> None:
    """Refuse a location that holds a credential, as a URI or as what is left of one.

    Args:
        location: a path or URI.
        what: it is, for the message.

    Raises:
        UserError: it does; the message does not repeat it.
    """
    # Also "KEY:SECRET@bucket/x", whose scheme was lost; a local path that looks so may exist.
    lost = re.search(r":[^@]*@", unquote(_START.sub("", location))) is not None and not _is_there(location)
    if lost or holds_credentials(location):
        raise UserError(f"{what}: {NO_CREDENTIALS}" if what else NO_CREDENTIALS)


def hide_secrets(location: str) -> str:
    """A location, or a text that contains one, as it is printed: without credentials, a URI without its options."""
    found = _first_with_credentials(location)
    if found is not None:
        return f"{location[: found.start()]}{found[1]}://..."
    return re.split(r"[?#]", location, maxsplit=1)[0] if is_uri(location) else location


def without_credentials(value: Any) -> Any:
    """Plain values with credentials taken out of every URI in them; what is left of the URI can still be opened.

    Run directories of older versions hold such URIs.
    """
    if isinstance(value, str):
        found = _first_with_credentials(value)
        if found is None:
            return value
        clean = f"{value[: found.end()]}{value[found.end() :].rpartition('@')[2]}"
        return clean if is_uri(value) and not holds_credentials(clean) else hide_secrets(value)
    if isinstance(value, Mapping):
        return {key: without_credentials(inner) for key, inner in value.items()}
    return [without_credentials(inner) for inner in value] if isinstance(value, list) else value


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a local path or URI, and the path in it.

    Args:
        location: a local path, or a URI that pyarrow knows (`file://`, `s3://`, `gs://`, `abfs://`, `hdfs://`), with
            its options as a query: `s3://bucket/run?region=eu-west-1`.

    Raises:
        UserError: it holds credentials, is malformed, or cannot be opened.
    """
    import pyarrow  # here: `raynas --help` needs none of it
    from pyarrow import fs

    refuse_credentials(location)
    if "\0" in location:
        raise UserError(f"{location!r}: a NUL character can be in no path")
    try:
        location.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{location!a}: the name is not UTF-8: rename it") from error
    scheme, colon, rest = location.partition(":")
    if not is_uri(location) and not (colon and scheme in ("", *SCHEMES)):
        return fs.LocalFileSystem(), location
    unread = f"{scheme.strip()}://... cannot be opened"  # what cannot be read is not repeated: it may hold anything
    if scheme not in SCHEMES or not rest.startswith("//"):
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise UserError(f"{unread}: a URI begins with one of {known}; write a local path that looks like one with ./")
    if "#" in rest:
        raise UserError(f"{unread}: write # as %23")
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except pyarrow.ArrowException as error:
        raise UserError(
            f"{unread}: it is not a URI that pyarrow reads, such as s3://bucket/folder?region=eu-west-1 (special "
            "characters are written as %20 and the like)"
        ) from error
    except (OSError, ValueError, NotImplementedError) as error:
        shown = hide_secrets(location)
        reason = str(error).replace(location, shown).strip().partition("\n")[0]
        raise UserError(f"{shown}: cannot be opened: {reason}") from error
    if not path.strip("/") and not isinstance(filesystem, fs.LocalFileSystem):
        raise UserError(f"{unread}: it names no bucket or folder")
    return filesystem, path


def _first_with_credentials(text: str) -> re.Match[str] | None:
    """Where the first URI with a credential begins."""
    if ":/" not in text:
        return None
    last = text.rfind("@")
    for found in _START.finditer(text):
        rest = text[found.end() :]
        authority = unquote(_AUTHORITY.match(rest)[0])  # type: ignore[index]
        port = authority.partition(":")[2].rstrip(".;:)")  # a message goes on after a location
        if port and not port.isdecimal():
            return found
        if last >= found.end():
            user = text[found.end() : last]
            if ":" in unquote(user) or ("/" not in user and found[1].lower() not in _WITH_USER):
                return found
        query = _WORD.match(rest)[0].partition("?")[2]  # type: ignore[index]
        web = found[1].lower() in ("http", "https")
        for option in re.split("[&;]", query) if query else ():
            name = unquote(option.partition("=")[0])
            if _SECRET.search(option) if web else name not in OPTIONS:
                return found
    return None


def _is_there(path: str) -> bool:
    return "\0" not in path and os.path.lexists(path)
