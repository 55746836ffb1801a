import itertools
import json
from pathlib import Path

import pytest

from cluster.lab.conversations import load_conversations


def test_the_demo_has_sixty_requests_in_four_groups() -> None:
    conversations = load_conversations()
    assert sum(len(conversation.exchanges) for conversation in conversations) == 60
    assert len({conversation.group for conversation in conversations}) == 4
    assert len({conversation.system_prompt for conversation in conversations}) == 4


def test_each_request_extends_the_one_before_by_the_recorded_answer() -> None:
    conversation = load_conversations()[0]
    requests = list(conversation.requests())
    assert requests[0] == [
        {"role": "system", "content": conversation.system_prompt},
        {"role": "user", "content": conversation.exchanges[0].user},
    ]
    for number, (before, after) in enumerate(itertools.pairwise(requests)):
        assert after[: len(before)] == before
        assert after[len(before) :] == [
            {"role": "assistant", "content": conversation.exchanges[number].assistant},
            {"role": "user", "content": conversation.exchanges[number + 1].user},
        ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": "1", "group": "none", "turns": [{"user": "a", "assistant": "b"}]}, "line 1: group 'none'"),
        ({"id": "1", "group": "g", "turns": []}, "line 1: conversation '1' has no turns"),
    ],
)
def test_a_bad_record_is_named_with_its_line(record: dict, message: str, tmp_path: Path) -> None:
    (tmp_path / "system_prompts.json").write_text('{"g": "Be kind."}')
    (tmp_path / "sgd_conversations.jsonl").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=message):
        load_conversations(tmp_path)
