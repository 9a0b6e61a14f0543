"""Recognises certificate errors: the other side did not prove its identity, or rejects our certificate."""

from __future__ import annotations

import ssl
from collections.abc import Iterator


def is_certificate_error(error: BaseException) -> bool:
    """Return whether the error, or one of its causes, is a certificate error: an unknown authority, a wrong name, an
    expired date.

    A retry does not help against such an error. Clients wrap the error of `ssl` in their own, so causes and contexts
    are examined too.
    """
    return any(_is_about_a_certificate(each) for each in _with_causes(error))


def _is_about_a_certificate(error: BaseException) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError) or type(error).__name__ == "CertificateError":
        return True  # the latter is urllib3's class, which does not derive from an error of ssl
    if not isinstance(error, ssl.SSLError):
        return False
    reason = str(getattr(error, "reason", None)).upper()  # one that `ssl` did not raise may have none
    return "CERTIFICATE" in reason or "UNKNOWN_CA" in reason


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, all its causes and all its contexts; each once."""
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [one for one in (each.__cause__, each.__context__) if one is not None]
