"""The forms that published models write, as their chat templates show them."""

from dataclasses import replace

from cluster.text.tool_forms.form import ParameterTags, ToolForm

HERMES = ToolForm(
    name="hermes",
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    between="\n",
)
"""Nous Hermes 2 and 3, Qwen 2.5 and 3, and what templates that know no tools are told to write."""

QWEN_CODER = ToolForm(
    name="qwen_coder",
    trigger="<tool_call>",
    before_name="<tool_call>\n<function=",
    before_arguments=">\n",
    after_arguments="</function>\n</tool_call>",
    between="\n",
    tags=ParameterTags(before_key="<parameter=", before_value=">\n", after_value="\n</parameter>\n"),
)
"""Qwen3-Coder, Qwen 3.5."""

NEMOTRON = replace(
    QWEN_CODER,
    name="nemotron",
    tags=ParameterTags(before_key="<parameter=", before_value=">", after_value="</parameter>\n"),
)
"""The same without line breaks around values."""

GLM = ToolForm(
    name="glm",
    trigger="<tool_call>",
    before_name="<tool_call>",
    before_arguments="\n",
    after_arguments="</tool_call>",
    between="\n",
    tags=ParameterTags(before_key="<arg_key>", before_value="</arg_key>\n<arg_value>", after_value="</arg_value>\n"),
)
"""GLM 4.5 and 4.6."""

GLM_COMPACT = replace(
    GLM,
    name="glm_compact",
    before_arguments="",
    between="",
    tags=ParameterTags(before_key="<arg_key>", before_value="</arg_key><arg_value>", after_value="</arg_value>"),
)
"""GLM 4.7: no line breaks at all."""

LLAMA = ToolForm(
    name="llama",
    trigger="",
    lead="<|python_tag|>",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between="; ",
)
"""Llama 3.1 to 3.3: the answer is the call."""

MISTRAL = ToolForm(
    name="mistral",
    trigger="[TOOL_CALLS]",
    before_all="[TOOL_CALLS][",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    between=", ",
    after_all="]",
)
"""Mistral's instruct models up to 2024."""

MISTRAL_SPACED = replace(MISTRAL, name="mistral_spaced", before_all="[TOOL_CALLS] [")
"""The same with a blank, as tokenizers with a blank in front write it."""

MISTRAL_ARGS = ToolForm(
    name="mistral_args",
    trigger="[TOOL_CALLS]",
    before_name="[TOOL_CALLS]",
    before_arguments="[ARGS]",
    after_arguments="",
    between="",
)
"""Mistral's models since 2025."""

DEEPSEEK_V3 = ToolForm(
    name="deepseek_v3",
    trigger="<｜tool▁calls▁begin｜>",
    before_all="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    before_arguments="\n```json\n",
    after_arguments="\n```<｜tool▁call▁end｜>",
    between="\n",
    after_all="<｜tool▁calls▁end｜>",
)
"""DeepSeek V3 and R1."""

DEEPSEEK_V31 = replace(
    DEEPSEEK_V3,
    name="deepseek_v31",
    before_name="<｜tool▁call▁begin｜>",
    before_arguments="<｜tool▁sep｜>",
    after_arguments="<｜tool▁call▁end｜>",
    between="",
)
"""DeepSeek V3.1."""

# The first that a template's rendering is equal to is taken, so a form stands before those that are like it but looser.
KNOWN_FORMS = (
    HERMES, QWEN_CODER, NEMOTRON, GLM, GLM_COMPACT, MISTRAL, MISTRAL_SPACED, MISTRAL_ARGS, DEEPSEEK_V3,
    DEEPSEEK_V31, LLAMA,
)  # fmt: skip
