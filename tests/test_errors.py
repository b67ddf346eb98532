"""The tree of exceptions, and Kafka's error codes in it."""

import contextlib
import copy
import importlib
import pickle
import pkgutil

import pytest

import headrace
from headrace import errors
from headrace.client.consumer._ranges import Loss, LostOffsetsError
from headrace.client.consumer.errors import LogTruncationError, NoOffsetForPartitionError, RecordDeserializationError
from headrace.client.errors import copy_of
from headrace.config import ConfigError
from headrace.errors import ErrorCode, HeadraceError, KafkaError, RetriableError, error_for
from headrace.parallel.errors import (
    BatchFailedError,
    DamagedBatchError,
    DeadLetterRefusedError,
    RetriesExhaustedError,
    RetryLater,
    UnreadableRecordError,
)
from headrace.runtime.errors import ConnectFailedError, DirectoryLockedError, DiskError
from headrace.topics import TopicPartition


def test_every_code_has_an_exception_named_after_it() -> None:
    for code in ErrorCode:
        if code is ErrorCode.NONE:
            continue
        error = error_for(code)
        words = code.name.removesuffix("_ERROR").removesuffix("_EXCEPTION").split("_")
        assert type(error).__name__ == "".join(word.capitalize() for word in words) + "Error"
        assert getattr(errors, type(error).__name__) is type(error)
        assert error.code is code
        assert isinstance(error, KafkaError)
        assert isinstance(error, RetriableError) is error.retriable is code.retriable
        assert str(error) == error.message == code.message


def test_codes_are_those_of_kafka_4_3() -> None:
    assert sorted(ErrorCode) == list(range(-1, 134))
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == 3
    assert ErrorCode.REBOOTSTRAP_REQUIRED == 129
    assert sum(code.retriable for code in ErrorCode) == 32


def test_messages_are_given_and_differ() -> None:
    assert len({code.message for code in ErrorCode}) == len(ErrorCode)
    error = error_for(3, "topic orders was deleted")
    assert isinstance(error, errors.UnknownTopicOrPartitionError)
    assert str(error) == "topic orders was deleted"


def test_an_unknown_code_is_an_unknown_server_error_that_tells_it() -> None:
    error = error_for(999, "from the future")
    assert isinstance(error, errors.UnknownServerError)
    assert "999" in str(error)
    assert "from the future" in str(error)


def test_no_error_is_not_an_error() -> None:
    with pytest.raises(ValueError, match="no error"):
        error_for(0)


def test_a_special_case_of_an_error_does_not_replace_it() -> None:
    class OddTimeoutError(errors.RequestTimedOutError):
        pass

    assert type(error_for(7)) is errors.RequestTimedOutError
    assert OddTimeoutError().code is ErrorCode.REQUEST_TIMED_OUT
    assert OddTimeoutError().retriable


P0 = TopicPartition("orders", 0)


class OwnRetryLater(RetryLater):
    """A user's, with words of its own."""

    def __init__(self, who: str) -> None:
        super().__init__(5.0, f"{who} is busy")
        self.who = who


@pytest.mark.parametrize(
    "error",
    [
        error_for(6, "broker 3"),
        errors.OffsetOutOfRangeError("position 7 is gone", {P0: 7}),
        LogTruncationError({P0: 7}, {P0: 5}),
        NoOffsetForPartitionError([P0]),
        RecordDeserializationError(P0, 3, "batch", "its checksum is wrong", last_offset=5, raw=b"x"),
        LostOffsetsError(Loss(P0, 3, 5, "offsets 3 to 5 are gone")),
        ConfigError({"acks": "acks is 0, 1 or all"}),
        DiskError("write", "/tmp/log", 28),
        DirectoryLockedError("/tmp/log", 7),
        ConnectFailedError("refused", "broker", 9092),
        RetriesExhaustedError(P0, 3, 2, ValueError("no")),
        DeadLetterRefusedError(P0, 3, 2, "orders.dead", ValueError("no")),
        UnreadableRecordError(P0, 3, "key", ValueError("no")),
        DamagedBatchError(P0, 3, 5, "its checksum is wrong"),
        RetryLater(5.0, "busy"),
        OwnRetryLater("payments"),
        BatchFailedError([1, 2]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_and_copying(error: HeadraceError) -> None:
    """A pool of processes that cannot read what a task raised breaks, or waits for ever."""
    for made in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy_of(error)):
        assert type(made) is type(error)
        assert str(made) == str(error)
        assert {name: repr(value) for name, value in vars(made).items()} == {
            name: repr(value) for name, value in vars(error).items()
        }


@pytest.mark.slow
def test_all_errors_are_pickled_in_one_way() -> None:
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if module.name.rpartition(".")[2] != "__main__":
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    found = [HeadraceError]
    for kind in found:
        found.extend(kind.__subclasses__())
    assert len(found) > 150
    assert [kind for kind in found if kind.__reduce__ is not HeadraceError.__reduce__] == []


def test_all_are_headrace_errors() -> None:
    assert issubclass(KafkaError, HeadraceError)
    assert issubclass(RetriableError, HeadraceError)
