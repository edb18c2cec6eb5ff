"""What an error of a queue means, in one table for each kind of queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from tailrace.sinks.letters.failure import Failure, Kind

OVERSIZE: Final = "oversize"
NO_ANSWER: Final = "no answer"

HTTP_STATUS: Final[Mapping[int, Kind]] = MappingProxyType(
    {
        **dict.fromkeys((400, 413, 415, 422), Kind.POISON),
        **dict.fromkeys((401, 403, 404, 405, 407, 410, 451), Kind.INFRASTRUCTURE),
        **dict.fromkeys((301, 302, 303, 307, 308), Kind.INFRASTRUCTURE),
        **dict.fromkeys((408, 409, 423, 425, 429), Kind.RETRIABLE),
    }
)
"""Every other status that is not 2xx is retriable."""

KINESIS_CODE: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        **dict.fromkeys(("ValidationException", "InvalidArgumentException"), Kind.POISON),
        **dict.fromkeys(
            (
                *("AccessDeniedException", "ResourceNotFoundException", "NotAuthorizedException"),
                *("UnrecognizedClientException", "InvalidSignatureException"),
                *("MissingAuthenticationToken", "IncompleteSignature", "OptInRequired"),
                *("ExpiredTokenException", "InvalidClientTokenId", "AccessDenied"),
                *("KMSAccessDeniedException", "KMSDisabledException", "KMSInvalidStateException"),
                *("KMSNotFoundException", "KMSOptInRequired"),
            ),
            Kind.INFRASTRUCTURE,
        ),
        **dict.fromkeys(
            (
                *("ProvisionedThroughputExceededException", "LimitExceededException"),
                *("KMSThrottlingException", "ThrottlingException", "RequestExpired"),
                *("InternalFailure", "InternalFailureException", "ServiceUnavailable"),
            ),
            Kind.RETRIABLE,
        ),
    }
)
"""Every other code is retriable."""


KAFKA_ERROR: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("RecordTooLarge", "InvalidRecord", "InvalidTimestamp", "Serialization"), Kind.POISON
        ),
        **dict.fromkeys(
            (
                *(
                    "TopicAuthorization",
                    "ClusterAuthorization",
                    "Authorization",
                    "SecurityDisabled",
                ),
                *("Authentication", "SaslAuthentication", "SslAuthentication", "IllegalSaslState"),
                *("DelegationTokenExpired", "UnsupportedSaslMechanism", "UnsupportedVersion"),
                *("InvalidTopic", "UnknownTopicOrPartition", "PolicyViolation", "Config", "Kafka"),
                *("InvalidRequiredAcks", "UnsupportedForMessageFormat"),
            ),
            Kind.INFRASTRUCTURE,
        ),
        **dict.fromkeys(
            (
                *("Timeout", "Disconnect", "Network", "NotLeaderOrFollower", "NotEnoughReplicas"),
                *("NotEnoughReplicasAfterAppend", "KafkaStorage", "CorruptRecord", "Retriable"),
                *("ThrottlingQuotaExceeded", "OutOfOrderSequence", "UnknownServer"),
            ),
            Kind.RETRIABLE,
        ),
    }
)
"""By the class of Kafka's exception, without that last word. Every other one is retriable."""

KAFKA_UNANSWERED: Final = frozenset({"Timeout", "Disconnect", "Network"})
"""Raised by the client itself when no broker says anything."""


def http_failure(status: int, reason: str, *, wait_s: float = 0.0) -> Failure:
    """What an answer that is not 2xx says about all messages of its request."""
    kind = HTTP_STATUS.get(status, Kind.RETRIABLE)
    hint = "see to the address and to what the receiver allows; delivery then goes on by itself"
    failure = Failure(kind, f"HTTP {status}", reason, is_shared=True, wait_s=wait_s)
    return _hinted(failure, hint)


def kinesis_failure(code: str, message: str, *, is_shared: bool) -> Failure:
    """What Kinesis has said about a record, or about a request as a whole."""
    kind = KINESIS_CODE.get(code, Kind.RETRIABLE)
    hint = "see to the stream and to the rights; delivery then goes on by itself"
    return _hinted(Failure(kind, code, message, is_shared=is_shared), hint)


def kafka_failure(error: str, message: str) -> Failure:
    """What Kafka's client has raised about a request, by the name of its exception."""
    if error in KAFKA_UNANSWERED:
        return no_answer(message)
    kind = KAFKA_ERROR.get(error, Kind.RETRIABLE)
    hint = "see to the topic, the properties and the rights; delivery then goes on by itself"
    return _hinted(Failure(kind, error, message, is_shared=True), hint)


def _hinted(failure: Failure, hint: str) -> Failure:
    """Only what a person must see to has a hint."""
    return replace(failure, hint=hint) if failure.kind is Kind.INFRASTRUCTURE else failure


def no_answer(message: str) -> Failure:
    """Nobody answered: the message may have arrived all the same."""
    return Failure(Kind.RETRIABLE, NO_ANSWER, message, is_answered=False, is_shared=True)


def oversize(size: int, limit: int) -> Failure:
    """A message that is too large to be tried."""
    return Failure(Kind.POISON, OVERSIZE, f"{size} bytes, and the queue takes {limit}")
