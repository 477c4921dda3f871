// Built-in formats of conversations, as chat templates.
#include "text/chat_template.h"

namespace blipft {
namespace {

// Users and assistants alternate, after an optional system message.
constexpr const char* turns = R"({% set first = 1 if messages[0].role == 'system' else 0 %}
{% for message in messages[first:] %}
  {% set expected = 'user' if loop.index0 % 2 == 0 else 'assistant' %}
  {% if message.role != expected %}
    {{ raise_exception('message ' ~ (loop.index + first) ~ ' is of role "' ~ message.role ~ '", expected "' ~ expected
                       ~ '": in this format user and assistant take turns, behind a system message or none') }}
  {% endif %}
{% endfor %}
)";

constexpr const char* chatml = R"({% for message in messages %}
  {{- '<|im_start|>' + message.role + '\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
  {%- else %}{{ message.content + '<|im_end|>' }}{% endif %}
  {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";

constexpr const char* llama2 = R"({% for message in messages[first:] %}
  {%- if message.role == 'user' %}
    {%- set before = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' if first and loop.first else '' %}
    {{- bos_token + '[INST] ' + (before + message.content)|trim + ' [/INST]' }}
  {%- else %}{% generation %}{{ ' ' + message.content|trim + ' ' + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %})";

constexpr const char* llama3 = R"({{ bos_token }}{% for message in messages %}
  {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
  {%- if message.role == 'assistant' %}
    {%- generation %}{{ message.content|trim + '<|eot_id|>' }}{% endgeneration %}
  {%- else %}{{ message.content|trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})";

constexpr const char* mistral = R"({{ bos_token }}{% for message in messages[first:] %}
  {%- if message.role == 'user' %}
    {%- set before = messages[0].content + '\n\n' if first and loop.first else '' %}
    {{- '[INST] ' + before + message.content + ' [/INST]' }}
  {%- else %}{% generation %}{{ ' ' + message.content|trim + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %})";

constexpr const char* gemma = R"({{ bos_token }}{% for message in messages[first:] %}
  {%- if message.role == 'user' %}
    {%- set before = messages[0].content + '\n\n' if first and loop.first else '' %}
    {{- '<start_of_turn>user\n' + before + message.content|trim + '<end_of_turn>\n' }}
  {%- else %}
    {{- '<start_of_turn>model\n' }}
    {%- generation %}{{ message.content|trim + '<end_of_turn>' }}{% endgeneration %}
    {{- '\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %})";

constexpr const char* zephyr = R"({% for message in messages if message.role in ['system', 'user', 'assistant'] %}
  {{- '<|' + message.role + '|>\n' }}
  {%- if message.role == 'assistant' %}{% generation %}{{ message.content + eos_token }}{% endgeneration %}
  {%- else %}{{ message.content + eos_token }}{% endif %}
  {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %})";

constexpr const char* alpaca = R"({{ bos_token }}{% if first %}{{ messages[0].content + '\n\n' }}{% endif %}
{%- for message in messages[first:] %}
  {%- if message.role == 'user' %}{{ '### Instruction:\n' + message.content + '\n\n' }}
  {%- else %}
    {{- '### Response:\n' }}{% generation %}{{ message.content + eos_token }}{% endgeneration %}{{ '\n\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '### Response:\n' }}{% endif %})";

struct Format {
  const char* name;
  const char* checks;
  const char* jinja;
};

const Format formats[] = {{"chatml", "", chatml},       {"llama2", turns, llama2}, {"llama3", "", llama3},
                          {"mistral", turns, mistral}, {"gemma", turns, gemma},   {"zephyr", "", zephyr},
                          {"alpaca", turns, alpaca}};

}  // namespace

std::vector<std::string> chat_format_names() {
  std::vector<std::string> names;
  for (const Format& format : formats) names.emplace_back(format.name);
  return names;
}

std::string chat_format_text(const std::string& name) {
  for (const Format& format : formats)
    if (format.name == name) return std::string(format.checks) + format.jinja;
  return {};
}

std::shared_ptr<const ChatTemplate> chat_format(const std::string& name) {
  const std::string text = chat_format_text(name);
  return text.empty() ? nullptr : std::make_shared<const ChatTemplate>(text, "data.chat_template " + name);
}

}  // namespace blipft
