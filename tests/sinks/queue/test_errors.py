"""The tables that say what an error means."""

from __future__ import annotations

import pytest

from tailrace.sinks.letters.failure import Kind
from tailrace.sinks.queue.errors import (
    HTTP_STATUS,
    KAFKA_ERROR,
    KINESIS_CODE,
    http_failure,
    kafka_failure,
    kinesis_failure,
    no_answer,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, Kind.POISON) for status in (400, 413, 415, 422)),
        *((status, Kind.INFRASTRUCTURE) for status in (301, 308, 401, 403, 404, 405, 410)),
        *((status, Kind.RETRIABLE) for status in (408, 409, 425, 429, 500, 502, 503, 504)),
        *((status, Kind.RETRIABLE) for status in (100, 418, 499, 599)),
    ],
)
def test_f098_status_is_classified_and_an_unknown_one_is_retriable(status: int, kind: Kind) -> None:
    failure = http_failure(status, "")
    assert failure.kind is kind
    assert bool(failure.hint) == (kind is Kind.INFRASTRUCTURE)
    assert failure.is_shared and failure.is_answered


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ProvisionedThroughputExceededException", Kind.RETRIABLE),
        ("InternalFailure", Kind.RETRIABLE),
        ("KMSThrottlingException", Kind.RETRIABLE),
        ("SomethingNew", Kind.RETRIABLE),
        ("ValidationException", Kind.POISON),
        ("InvalidArgumentException", Kind.POISON),
        ("AccessDeniedException", Kind.INFRASTRUCTURE),
        ("ResourceNotFoundException", Kind.INFRASTRUCTURE),
        ("ExpiredTokenException", Kind.INFRASTRUCTURE),
        ("KMSDisabledException", Kind.INFRASTRUCTURE),
    ],
)
def test_f098_code_is_classified_and_an_unknown_one_is_retriable(code: str, kind: Kind) -> None:
    failure = kinesis_failure(code, "", is_shared=False)
    assert failure.kind is kind
    assert bool(failure.hint) == (kind is Kind.INFRASTRUCTURE)


@pytest.mark.parametrize(
    ("error", "kind", "is_answered"),
    [
        ("NotEnoughReplicas", Kind.RETRIABLE, True),
        ("SomethingNew", Kind.RETRIABLE, True),
        ("Timeout", Kind.RETRIABLE, False),
        ("Disconnect", Kind.RETRIABLE, False),
        ("RecordTooLarge", Kind.POISON, True),
        ("InvalidRecord", Kind.POISON, True),
        ("TopicAuthorization", Kind.INFRASTRUCTURE, True),
        ("SaslAuthentication", Kind.INFRASTRUCTURE, True),
        ("UnknownTopicOrPartition", Kind.INFRASTRUCTURE, True),
    ],
)
def test_f098_error_of_kafka_is_classified_and_an_unknown_one_is_retriable(
    error: str, kind: Kind, is_answered: bool
) -> None:
    failure = kafka_failure(error, "")
    assert (failure.kind, failure.is_answered, failure.is_shared) == (kind, is_answered, True)
    assert bool(failure.hint) == (kind is Kind.INFRASTRUCTURE)


def test_silence_is_retriable_and_says_nothing_about_the_message() -> None:
    failure = no_answer("connection refused")
    assert failure.kind is Kind.RETRIABLE and not failure.is_answered


def test_tables_name_no_success() -> None:
    assert not [status for status in HTTP_STATUS if 200 <= status < 300]
    assert set(KINESIS_CODE.values()) == set(KAFKA_ERROR.values()) == set(Kind)
