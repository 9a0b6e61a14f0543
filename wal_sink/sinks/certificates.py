"""Whether an error is about a certificate: the other side did not prove who it is, or does not take what we showed."""

from __future__ import annotations

import ssl
from collections.abc import Iterator


def is_certificate_error(error: BaseException) -> bool:
    """Whether it, or what led to it, is one that no retry changes: an unknown authority, another name, an expired date.

    Clients wrap the error of `ssl` in their own, so causes and contexts are looked at too.
    """
    return any(_is_about_a_certificate(each) for each in _with_causes(error))


def _is_about_a_certificate(error: BaseException) -> bool:
    if isinstance(error, ssl.SSLCertVerificationError) or type(error).__name__ == "CertificateError":
        return True  # the latter is urllib3's own, which is no error of ssl
    reason = str(getattr(error, "reason", "")).upper() if isinstance(error, ssl.SSLError) else ""
    return "CERTIFICATE" in reason or "UNKNOWN_CA" in reason


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that it was raised from or while handling; each once."""
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [one for one in (each.__cause__, each.__context__) if one is not None]
