"""Every answer of the server that is an error becomes an exception with its sentence and its way out."""

from __future__ import annotations

import httpx
import pytest

from tunefleet.api.problem_details import STATUSES, from_error, problem
from tunefleet.client.problems import exception_of
from tunefleet.errors import InputError, TooManyError
from tunefleet.workloads.faults import RequestError


@pytest.mark.parametrize("code", STATUSES)
def test_every_code_of_the_server_is_understood(code: str) -> None:
    answer = problem(code, "The thing is so.", hint="Do that.")
    error = exception_of(httpx.Response(answer.status_code, headers=dict(answer.headers)), bytes(answer.body))
    assert "The thing is so." in str(error)


def test_who_asks_too_often_learns_when_to_ask_again() -> None:
    answer = from_error(TooManyError("Ten were open.", hint="Close one.", retry_after_s=7))
    error = exception_of(httpx.Response(answer.status_code, headers=dict(answer.headers)), bytes(answer.body))
    assert isinstance(error, TooManyError)
    assert (error.message, error.hint, error.retry_after_s) == ("Ten were open.", "Close one.", 7)


def test_what_a_program_raises_among_its_own_does_not_answer_for_the_server() -> None:
    assert RequestError.code == "request_invalid"
    answer = problem("request_invalid", "The thing is so.")
    error = exception_of(httpx.Response(answer.status_code, headers=dict(answer.headers)), bytes(answer.body))
    assert type(error) is InputError
