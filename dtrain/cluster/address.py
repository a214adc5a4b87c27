"""The address of a task: `host:port`, or `[IPv6]:port`."""

import ipaddress
import json
import re
from typing import Any

from dtrain import errors

_HOST = re.compile(r"[\w.-]+")
_EXAMPLE = "Write host:port, for instance localhost:2222."


def split_address(address: str) -> tuple[str, int]:
    """Splits an address into its host and its port.

    Args:
        address: `host:port`; an IPv6 address stands in brackets, `[::1]:4000`.

    Returns:
        The host as it was written, without brackets, and the port.

    Raises:
        UsageError: no port, a port that is no number from 1 to 65535, a scheme, a
            space, IPv6 without brackets, or anything else that is no address.
    """
    given = f"Address {quote(address)}"
    if "://" in address:
        bare = address.split("://", 1)[1].rstrip("/")
        raise errors.UsageError(
            f"{given} has a scheme. Leave it out: write {bare or 'host:port'}."
        )
    if re.search(r"[\s;]", address):
        raise errors.UsageError(
            f"{given} holds a space or a semicolon. Separate addresses with commas: "
            "a:1,b:2."
        )
    if address.startswith("["):
        host, port = _split_brackets(address, given)
    else:
        if address.count(":") > 1:
            raise errors.UsageError(
                f"{given} has more than one colon. {_how_to_bracket(address)}"
            )
        host, colon, port = address.partition(":")
        if not host:
            raise errors.UsageError(f"{given} has no host. {_EXAMPLE}")
        if not _HOST.fullmatch(host):
            raise errors.UsageError(
                f"{given} has a character that no host name has. {_EXAMPLE}"
            )
        if not colon or not port:
            raise errors.UsageError(f"{given} has no port. Write {host}:2222.")
    return host, _read_port(port, given)


def normalise_address(address: str) -> str:
    """Returns the one way to write an address: two that are equal name one task.

    Host names are in lower case, ports without leading zeros and IPv6 addresses in
    their short form.

    Raises:
        UsageError: see `split_address`.
    """
    host, port = split_address(address)
    if address.startswith("["):
        return f"[{ipaddress.IPv6Address(host)}]:{port}"
    return f"{host.lower()}:{port}"


def quote(value: Any) -> str:
    """Returns a value as a message shows it: as JSON, so always on one line."""
    return json.dumps(value, ensure_ascii=False, default=repr)


def _split_brackets(address: str, given: str) -> tuple[str, str]:
    host, bracket, rest = address[1:].partition("]")
    if not bracket or not _is_ipv6(host):
        raise errors.UsageError(
            f"{given} has no IPv6 address between brackets. "
            "Write it like [::1]:2222, other hosts without brackets."
        )
    if not rest.startswith(":") or rest == ":":
        raise errors.UsageError(f"{given} has no port. Write [{host}]:2222.")
    return host, rest[1:]


def _how_to_bracket(address: str) -> str:
    host, _, port = address.rpartition(":")
    if _is_ipv6(host) and port.isdecimal():
        return f"An IPv6 address stands in brackets: write [{host}]:{port}."
    if _is_ipv6(address):
        return f"An IPv6 address stands in brackets: write [{address}]:2222."
    return f"{_EXAMPLE} Separate addresses with commas: a:1,b:2."


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _read_port(port: str, given: str) -> int:
    # No int() first: it would take "+80", "8_0" and digits of other scripts.
    if not re.fullmatch(r"[0-9]+", port):
        raise errors.UsageError(
            f"{given}: the port {quote(port)} is not a number. "
            "Give one from 1 to 65535."
        )
    digits = port.lstrip("0") or "0"
    if digits == "0" or len(digits) > 5 or int(digits) > 65535:
        raise errors.UsageError(
            f"{given}: the port {port} is out of range. Give one from 1 to 65535."
        )
    return int(digits)
