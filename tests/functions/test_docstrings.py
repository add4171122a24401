"""Docstrings in three styles say what parameters are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.functions import docstrings

GOOGLE = """Book a room.

    It is booked at once:
      no question is asked.

    Args:
        room (str): Which room,
            by its name.
        guests: How many come.
        *rest: Others.

    Returns:
        The booking.

    Raises:
        ValueError: never.

    Note: rooms are small.
    """
NUMPY = """Book a room.

    Parameters
    ----------
    room : str
        Which room,
        by its name.
    guests, rest : int, optional
        How many come.

    Returns
    -------
    str
        The booking.

    Notes
    -----
    Rooms are small.
    """
REST = """Book a room.

    It is booked at once.

    :param str room: Which room,
        by its name.
    :param guests: How many come.
    :type guests: int
    :returns: The booking.
    :raises ValueError: never.
    """


@pytest.mark.parametrize(
    ("text", "description", "others"),
    [
        (
            GOOGLE,
            "Book a room.\n\nIt is booked at once:\n  no question is asked.\n\nNote: rooms are small.",
            {"rest": "Others."},
        ),
        (NUMPY, "Book a room.\n\nNotes\n-----\nRooms are small.", {"rest": "How many come."}),
        (REST, "Book a room.\n\nIt is booked at once.", {}),
    ],
)
def test_each_style_gives_description_and_parameters(
    text: str, description: str, others: dict[str, str]
) -> None:
    found = docstrings.read(text)
    assert found.description == description
    assert found.parameters == {"room": "Which room, by its name.", "guests": "How many come.", **others}


@pytest.mark.parametrize("text", [None, "", "   \n  "])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert docstrings.read(text) == docstrings.Docstring("", {})


def test_a_word_that_begins_no_section_stays() -> None:
    assert docstrings.read("Args:").description == "Args:"
    assert docstrings.read("Returns: at once.").description == "Returns: at once."


@given(st.text(st.sampled_from("Args:\n -param ab*()Returns"), max_size=120))
def test_no_text_is_too_odd(text: str) -> None:
    found = docstrings.read(text)
    assert all(found.parameters.values())
    assert found.description == found.description.strip()
