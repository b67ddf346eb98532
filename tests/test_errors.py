"""The tree of exceptions, and Kafka's error codes in it."""

import pickle

import pytest

from headrace import errors
from headrace.errors import ErrorCode, HeadraceError, KafkaError, RetriableError, error_for


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


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(error_for(6, "broker 3")))
    assert isinstance(error, errors.NotLeaderOrFollowerError)
    assert str(error) == "broker 3"


def test_all_are_headrace_errors() -> None:
    assert issubclass(KafkaError, HeadraceError)
    assert issubclass(RetriableError, HeadraceError)
