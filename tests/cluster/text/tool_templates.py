"""Chat templates of our own, each of which writes tools and calls as the named models' templates do."""

from cluster.text.tool_forms.form import ToolForm
from cluster.text.tool_forms.known_forms import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    GLM,
    GLM_COMPACT,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    MISTRAL_SPACED,
    NEMOTRON,
    QWEN_CODER,
)

_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
)
_BEGIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.content %}{{ message.content }}{% endif %}"
)
_END = "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"


def _template(calls: str, tools: str = _TOOLS) -> str:
    """calls: what stands for `message.tool_calls`."""
    return f"{tools}{_BEGIN}{{% if message.tool_calls %}}{calls}{{% endif %}}{_END}"


def _each(call: str, between: str = "") -> str:
    between = f"{{% if not loop.first %}}{{{{ {between!r} }}}}{{% endif %}}" if between else ""
    return (
        f"{{% for each in message.tool_calls %}}{between}{{% set call = each.function %}}{{{{ {call} }}}}{{% endfor %}}"
    )


def _tagged(before: str, parameter: str, after: str) -> str:
    return (
        "{% for each in message.tool_calls %}{% set call = each.function %}{{ " + before + " }}"
        "{% for key, value in call.arguments | items %}{% set text = value if value is string else value | tojson %}"
        "{{ " + parameter + " }}{% endfor %}{{ " + after + " }}{% endfor %}"
    )


_JSON_CALL = "'{\"name\": \"' + call.name + '\", \"arguments\": ' + call.arguments | tojson + '}'"
_MISTRAL_CALL = (
    '\'{"name": "\' + call.name + \'", "arguments": \' + call.arguments | tojson + \', "id": "\' + each.id + \'"}\''
)
_MISTRAL_IDS = (
    "{% for each in message.tool_calls %}{% if each.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}{% endfor %}"
)
_ONE_CALL = (
    "{% if message.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
)
_V3 = (
    "'<｜tool▁call▁begin｜>' + each.type + '<｜tool▁sep｜>' + call.name + '\n```json\n' + call.arguments + '\n```'"
    " + '<｜tool▁call▁end｜>'"
)
_V3_CALLS = "{{ '<｜tool▁calls▁begin｜>' }}" + _each(_V3, "\n") + "{{ '<｜tool▁calls▁end｜>' }}"

TEMPLATES: dict[str, tuple[str, ToolForm]] = {
    "Qwen 2.5": (_template(_each(f"'<tool_call>\n' + {_JSON_CALL} + '\n</tool_call>'", "\n")), HERMES),
    "Qwen3-Coder": (
        _template(
            _tagged(
                "'\n<tool_call>\n<function=' + call.name + '>\n'",
                "'<parameter=' + key + '>\n' + text + '\n</parameter>\n'",
                "'</function>\n</tool_call>'",
            )
        ),
        QWEN_CODER,
    ),
    "Nemotron 3": (
        _template(
            _tagged(
                "'<tool_call>\n<function=' + call.name + '>\n'",
                "'<parameter=' + key + '>' + text + '</parameter>\n'",
                "'</function>\n</tool_call>\n'",
            )
        ),
        NEMOTRON,
    ),
    "GLM 4.5": (
        _template(
            _tagged(
                "'\n<tool_call>' + call.name + '\n'",
                "'<arg_key>' + key + '</arg_key>\n<arg_value>' + text + '</arg_value>\n'",
                "'</tool_call>'",
            )
        ),
        GLM,
    ),
    "GLM 4.7": (
        _template(
            _tagged(
                "'<tool_call>' + call.name",
                "'<arg_key>' + key + '</arg_key><arg_value>' + text + '</arg_value>'",
                "'</tool_call>'",
            )
        ),
        GLM_COMPACT,
    ),
    "Llama 3": (
        _template(
            _ONE_CALL
            + _each("'{\"name\": \"' + call.name + '\", ' + '\"parameters\": ' + call.arguments | tojson + '}'")
        ),
        LLAMA,
    ),
    "Mistral 7B": (
        _template(_MISTRAL_IDS + "{{ '[TOOL_CALLS][' }}" + _each(_MISTRAL_CALL, ", ") + "{{ ']' }}"),
        MISTRAL,
    ),
    "Mistral Nemo": (
        _template(_MISTRAL_IDS + "{{ '[TOOL_CALLS] [' }}" + _each(_MISTRAL_CALL, ", ") + "{{ ']' }}"),
        MISTRAL_SPACED,
    ),
    "Ministral 3": (
        _template(_each("'[TOOL_CALLS]' + call.name + '[ARGS]' + call.arguments | tojson")),
        MISTRAL_ARGS,
    ),
    "DeepSeek V3": (_template(_V3_CALLS), DEEPSEEK_V3),
    "DeepSeek R1": (_template(_V3_CALLS, tools=""), DEEPSEEK_V3),
    "DeepSeek V3.1": (
        _template(
            "{{ '<｜tool▁calls▁begin｜>' }}"
            + _each(
                "'<｜tool▁call▁begin｜>' + call.name + '<｜tool▁sep｜>' + call.arguments | tojson"
                " + '<｜tool▁call▁end｜>'"
            )
            + "{{ '<｜tool▁calls▁end｜>' }}"
        ),
        DEEPSEEK_V31,
    ),
}
