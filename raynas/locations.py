"""Local paths and URIs: telling them apart, and keeping credentials out of them.

Locations are printed, stored in run directories and passed to workers. So every URI with a credential is refused on
input: credentials come from the environment, a profile file or the machine's role.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from raynas.errors import UserError

SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")

OPTIONS = (
    *("region", "scheme", "endpoint_override", "allow_bucket_creation", "allow_bucket_deletion", "tls_ca_file_path"),
    *("tls_ca_dir_path", "tls_verify_certificates", "force_virtual_addressing", "background_writes", "smart_defaults"),
    *("check_directory_existence_before_creation", "retry_limit_seconds", "project_id"),
    *("enable_tls", "blob_storage_authority", "dfs_storage_authority", "credential_kind", "tenant_id", "client_id"),
    *("user", "replication", "buffer_size", "default_block_size", "kerb_ticket"),
)
"""Options that a URI may have: all of pyarrow's that are not secrets."""

NO_CREDENTIALS = (
    "a location is printed and stored and must hold no credentials, nor options that raynas does not know: leave them "
    "out, and give credentials as the store's own tools take them: in the environment (variables AWS_*, GOOGLE_*, "
    "AZURE_*), a profile file, or the machine's role (docs/results.md)"
)

_START = re.compile(r"(?<![A-Za-z0-9+.\-])([A-Za-z][A-Za-z0-9+.\-]*):/+")
_AUTHORITY = re.compile(r"[^/?#\s,\[\]{}'\"@]*")
_WITHOUT_SCHEME = re.compile(r"(?<![^\s'\"=(\[{,<])(?://)?[^\s:/@'\"=(\[{,<]+(?::|%3A)(?!//)[^\s]*@", re.IGNORECASE)
_WORD = re.compile(r"[^\s'\"]*")
_WITH_USER = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")  # a name before the @ is an account or a container
_SECRET = re.compile("key|secret|token|sig|pass|cred|auth", re.IGNORECASE)


def is_uri(location: str) -> bool:
    """Return True for a URI such as `s3://bucket/folder`, even a malformed one; False for a local path."""
    return _START.match(location.lstrip(" \t\"'<")) is not None


def inside(uri: str, name: str) -> str:
    """Return the URI of a file or folder in a URI's folder, with the same options; of "" the folder's own."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path="/".join(part for part in (parts.path.rstrip("/"), name) if part)))


def holds_credentials(text: str) -> bool:
    """Return True if a text is or contains a URI with a user and password, or with an option that may be a secret.

    It errs on the safe side: only the start of a URI is matched, so that a malformed rest is covered too.
    """
    return _first_with_credentials(text) is not None


def refuse_credentials(location: str, what: str = "") -> None:
    """Raise an error if a location holds a credential, even if the URI has lost its scheme.

    Args:
        what: the kind of location, for the message.

    Raises:
        UserError: it holds a credential; the message does not repeat it.
    """
    # Also "KEY:SECRET@bucket/x", whose scheme was lost; a local path that looks so may exist.
    lost = re.search(r":[^@]*@", unquote(_START.sub("", location))) is not None and not _is_there(location)
    if lost or holds_credentials(location):
        raise UserError(f"{what}: {NO_CREDENTIALS}" if what else NO_CREDENTIALS)


def hide_secrets(location: str) -> str:
    """Return a location, or a text that contains one, for printing: without credentials, a URI without its options.

    Addresses are locations, too: `http://user:secret@host` becomes `http://...`, `user:secret@host` becomes `...@host`.
    """
    found = _first_with_credentials(location)
    if found is not None:
        return f"{_WITHOUT_SCHEME.sub('...@', location[: found.start()])}{found[1]}://..."
    location = _WITHOUT_SCHEME.sub("...@", location)
    return re.split(r"[?#]", location, maxsplit=1)[0] if is_uri(location) else location


def without_credentials(value: Any) -> Any:
    """Return plain values with credentials removed from every URI in them; the remaining URI can still be opened.

    Run directories of older versions contain such URIs.
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


def _first_with_credentials(text: str) -> re.Match[str] | None:
    """Return the match of the start of the first URI with a credential."""
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
