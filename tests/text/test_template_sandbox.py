"""Templates come in files from strangers: errors, never a crash, a hang or a full memory."""

import threading
import time

import pytest

from kvist.errors import CorruptFile, KvistError, ModelError, UsageError
from kvist.text.chat import ChatTemplate

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
        "{% set ns.x = y %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% for i in range(50000) %}{{ 'a' * 1000 }}{% endfor %}",
        "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ ('\n' * 1000000) | indent(99999) }}",
        "{{ ('\t' * 1000000).expandtabs(99999) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000).join(range(90000) | list) }}",
        "{{ (range(90000) | list) | join('a' * 1000000) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{0:>999999999}' | format(1) }}",
        "{{ [1] | tojson(indent=99999) }}",
        "{{ strftime_now('%999999999d') }}",
        "{{ ''.__class__.__mro__ }}{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(__class__=1) %}{% set ns._x = 1 %}",
        "{{ undefined_function(1) }}",
        "{{ messages[0].content + 1 }}",
        "{{ none.x.y }}",
        "{{ 1 / 0 }}",
        "{% include 'other' %}",
        "{% for x in 5 %}{% endfor %}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_misbehaving_templates_are_stopped(source):
    start = time.process_time()
    try:
        out = ChatTemplate(source).render([USER])
    except KvistError as error:
        assert error.remedy
    else:
        assert len(out) < 1000 and "object" not in out, out[:200]  # jinja2's sandbox gives nothing for what is hidden
    assert time.process_time() - start < 6


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("{% for m in messages %}", r"does not compile.*\(line 1\)"),
        ("a\n{{ 1 +", r"line 2"),
        ("{{ x | no_such_filter }}", "no_such_filter"),
        ("{% nonsense %}", "nonsense"),
        ("(" * 1 + "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "does not compile"),
    ],
)
def test_templates_that_do_not_compile(source, match):
    with pytest.raises(CorruptFile, match=match):
        ChatTemplate(source)


def test_bounds_are_settable_and_named():
    with pytest.raises(ModelError, match="more than 100"):
        ChatTemplate("{{ messages[0].content * 101 }}", max_chars=100).render([{**USER, "content": "x"}])
    with pytest.raises(ModelError, match="more than 60 steps"):
        ChatTemplate("{% for i in range(70) %}{% endfor %}", max_steps=60).render([USER])
    assert ChatTemplate("{% for i in range(40) %}x{% endfor %}", max_steps=60).render([USER]) == "x" * 40


def test_the_budget_is_of_one_render():
    template = ChatTemplate("{% for i in range(40) %}x{% endfor %}", max_steps=60)
    assert [template.render([USER]) for _ in range(5)] == ["x" * 40] * 5
    done = []
    threads = [threading.Thread(target=lambda: done.append(template.render([USER]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == ["x" * 40] * 4


def test_a_long_chat_is_within_the_bounds():
    template = ChatTemplate("{% for m in messages %}{{ m.content | trim }}{{ loop.length }}{% endfor %}")
    assert len(template.render([{**USER, "content": "word " * 200}] * 3000)) == 3000 * 1003


def test_what_templates_use_works():
    source = (
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ loop.index }}/{{ loop.length }}"
        "{{ loop.last }}{{ loop.previtem.role }}{% break %}{% endfor %}|"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}|"
        "{% for x in [3, 1, 2] | sort if x > 1 %}{{ x }}{% else %}none{% endfor %}|"
        "{% for x in missing %}{% else %}empty{% endfor %}|"
        "{% for x in [1, 2] | map('string') %}{{ x }}{{ loop.length }}{% endfor %}|"
        "{% set x %}  a{{ 'b' ~ 1 ~ 'c' }}{% endset %}{{ x | trim }}|{{ {'é': '<'} | tojson }}|"
        "{% generation %}said{% endgeneration %}|{{ '%s-%d' % ('a', 3) }}|{{ dict(a=1).a }}"
    )
    want = '2/2Trueuser|a1|23|empty|1222|ab1c|{"é": "<"}|said|a-3|1'
    assert ChatTemplate(source).render([USER, USER]) == want


def test_wrong_messages_for_a_template_are_the_users_to_mend():
    with pytest.raises(UsageError, match="TypeError"):
        ChatTemplate("{{ messages[0].content + 1 }}").render([USER])
