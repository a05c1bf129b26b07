"""Conversations whose later turns hold what the model has answered to the earlier ones.

The body of such a turn has a mark where an answer belongs; the worker that got the answer puts it
in, and sends the turn on the same stream.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence

Request = tuple[int, bytes]


def answer_mark(turn: int) -> str:
    """Return what stands for the answer to a turn (from 0), as the content of a message."""
    return f"\0answer {turn}\0"


class Conversations:
    """The turns of a part's conversations, and what was answered so far.

    Args:
        requests: (index, body) of each, conversation by conversation.
        turns: Of each conversation, 2 or more.

    Attributes:
        first: The first turn of each.
    """

    def __init__(self, requests: Sequence[Request], turns: int) -> None:
        self._turns = turns
        self._bodies = dict(requests)
        self._answers: dict[int, list[str]] = {}
        self.first: deque[Request] = deque(r for r in requests if r[0] % turns == 0)

    def after(self, index: int, answer: str) -> Request | None:
        """Return the turn that follows one, with all answers in it; None after the last.

        Args:
            index: Of the turn that was answered.
            answer: What the model said.
        """
        conversation, turn = divmod(index, self._turns)
        answers = self._answers.setdefault(conversation, [])
        answers.append(answer)
        body = self._bodies.get(index + 1) if turn + 1 < self._turns else None
        if body is None:
            del self._answers[conversation]
            return None
        for number, said in enumerate(answers):
            mark, words = json.dumps(answer_mark(number)), json.dumps(said)
            body = body.replace(mark.encode(), words.encode())
        return index + 1, body

    def broken_off(self, index: int) -> range:
        """Return the turns after one that failed: they will never be sent."""
        conversation, turn = divmod(index, self._turns)
        self._answers.pop(conversation, None)
        return range(index + 1, index + self._turns - turn)
