"""The language of messages, help, docstrings and documents: the standard term of the field for each old idiom."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
INLINE_CODE = re.compile(r"`[^`\n]*`|\]\([^)\n]*\)")
"""Identifiers and link targets: they are names, not prose."""
PREPOSITION = re.compile(r"\s*(?:Of|By|As|From|In|With|Those|It)\b")
"""Beginnings of a docstring that do not name its subject."""


class Idiom(NamedTuple):
    """A pattern of the old wording, the term to use instead, and a sentence that the pattern must find."""

    pattern: str
    standard: str
    example: str


IDIOMS = (
    Idiom(r"\bsays\b", "reports, states", "the error says what is wrong"),
    Idiom(r"\bsaid\b", "reported", "what the host said"),
    Idiom(r"\bsaying\b", "reporting", "without saying so"),
    Idiom(r"\btells\b", "reports", "the agent tells the launcher"),
    Idiom(r"\btold\b", "notified, receives", "the worker is told to end"),
    Idiom(r"\bhears?\b", "receives", "the broker hears nothing of it"),
    Idiom(r"\bheard\b", "received, reported", "its agent heard no launcher"),
    Idiom(r"\bspeaks?\b", "communicates, sends for", "far speaks for local"),
    Idiom(r"\b(?:gives|gave|giving) up\b", "stops restarting, discards", "the agent gives up"),
    Idiom(r"\bgiven up\b|\bgive up\b", "restart limit reached, failed, discarded", "it is given up after 5 restarts"),
    Idiom(r"\bgoes on\b", "continues", "the run goes on without it"),
    Idiom(r"\bgo on\b", "continue", "the run cannot go on"),
    Idiom(r"\bwent on\b|\bgone on\b", "continued", "the run went on elsewhere"),
    Idiom(r"\bstarted again (?:in|at once)\b", "restarting in", "it is started again in 0.5 s"),
    Idiom(r"\bstands\b", "is, is listed, the position of", "where the env stands"),
    Idiom(r"\bstands? twice\b", "is listed twice, duplicate", "the key 'x' stands twice"),
    Idiom(r"\bstands? still\b", "is stalled", "the run stands still"),
    Idiom(r"\b(?:stands?|is|faults?) in the way\b", "prevents", "nothing stands in the way"),
    Idiom(r"\bas (?:it|they) stands?\b", "current", "the ledger as it stands"),
    Idiom(r"\bnobody\b", "no process, no host", "a host that nobody listens to"),
    Idiom(r"\b(?:some|any)body\b", "a process, another user", "somebody else computes here"),
    Idiom(r"\bwhoever\b", "the process that", "ask whoever administers it"),
    Idiom(r"\bbeside\b", "alongside, in addition to", "written beside training"),
    Idiom(r"\banew\b", "again, from scratch", "the run begins anew"),
    Idiom(r"\b(?:a|the|its) far \w|\bfar (?:host|end|side|shell|agent|folder)", "remote", "the far side closed it"),
    Idiom(r"\bover there\b", "on the remote host", "the command may run on over there"),
    Idiom(r"\bby itself\b|\bby themselves\b", "automatically, on its own", "a host that joins by itself"),
    Idiom(r"\bone's own\b", "your own", "a dotted path to one's own"),
    Idiom(r"\b(?:is|was) no (?!longer\b|more\b)[a-z]", "is not a, invalid, unknown", "this is no YAML"),
    Idiom(r"\bare no (?!longer\b|more\b)[a-z]", "are not", "values that are no numbers"),
    Idiom(r"\bthere (?:is|are|was|were) no\b", "not found, missing, unknown", "there is no such file"),
    Idiom(r"\b(?:cannot|could not|not) be had\b", "is unavailable, cannot bind", "port 7000 cannot be had"),
    Idiom(r"\bmend(?:s|ed|ing)?\b", "fix", "what mends it"),
    Idiom(r"\b(?:takes?|took|taken) up (?!to\b)[a-z]", "hand over, handed over", "a vector env is taken up by another"),
    Idiom(r"\btake-ups?\b", "handover", "a take-up carries 8 MB"),
    Idiom(r"\btakes? (?:no )?part\b", "participates, not part of this run", "the host takes no part"),
    Idiom(r"\b(?:un)?booked\b", "accepted", "the segment is booked"),
    Idiom(r"\b(?:the|its|their) books\b", "stream records", "the books of the arena"),
    Idiom(r"\bswept\b", "closed", "a stream that was swept"),
    Idiom(r"\b(?:went|goes|gone|go) back\b", "rolled back", "the learner went back to version 3"),
    Idiom(r"\bma(?:de|ke) up for\b", "caught up, offset", "the updates are not made up for"),
    Idiom(r"\bforgiv(?:e|es|en|ing)\b", "offset, waived", "the updates are forgiven"),
    Idiom(r"\blast words\b", "log tail, final lines", "the last words of the process"),
    Idiom(r"\b(?:without|said|says|never) a word\b", "no output, no message", "it ended without a word"),
    Idiom(r"\b(?:hung|hangs?) up\b", "closed the connection", "the server hung up 8 times"),
    Idiom(r"\bsay(?:s|ing)? hello\b|\bsaid (?:no )?hello\b", "SSH banner, handshake", "it did not say hello"),
    Idiom(r"\bthis very\b", "this", "this very version is installed"),
    Idiom(r"\bbur(?:y|ies|ied)\b", "remove", "the broker buries the worker"),
    Idiom(r"\bdoomed\b", "target run", "the doomed run"),
    Idiom(r"\bhomeless\b|\brehoused?\b", "unleased, relocated", "homeless segments"),
    Idiom(r"\bfarewell\b|\bgoodbye\b", "shutdown notice", "a worker that sent its farewell"),
    Idiom(r"\bgets? on\b", "makes progress", "the run does not get on"),
    Idiom(r"\bask(?:s|ed)? for\b", "request, requested", "what was asked for"),
    Idiom(r"\b(?:is|was|are|were) asked to\b", "stop requested", "the run is asked to stop"),
    Idiom(r"\bcannot be asked\b", "unreachable", "a host that cannot be asked"),
    Idiom(r"\b(?:agent|host|worker|broker|learner)'s (?:absolute )?word\b", "report, record", "a host agent's word"),
    Idiom(r"\bof ours\b", "of zmqrl", "no folder of ours"),
)


class Text(NamedTuple):
    """A text that users read; it begins at `line` of `path`."""

    path: Path
    line: int
    content: str


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.pattern)
def test_each_pattern_finds_its_example(idiom: Idiom) -> None:
    assert compiled(idiom).search(idiom.example)


def test_patterns_find_a_sentence_over_two_lines() -> None:
    text = Text(Path("x.py"), 7, "one line\nand the run goes\non.")
    assert findings([text]) == ["x.py:8: 'goes on': write 'continues'"]


def test_names_are_not_prose() -> None:
    assert not findings([Text(Path("x.md"), 1, "see `the.books` and [a decision](0015-not-made-up-for.md)")])


def test_a_fixed_message_of_an_f_string_is_read_as_one_text() -> None:
    source = 'def f(x):\n    raise ValueError(f"{x} is "\n        f"no Algorithm of {x}")\n'
    assert findings(texts_of(source, Path("x.py"))) == ["x.py:2: 'is no A': write 'is not a, invalid, unknown'"]


def test_docstrings_of_private_functions_are_not_read() -> None:
    source = 'def _f():\n    """What it says."""\ndef g():\n    """What it says."""\n'
    assert findings(texts_of(source, Path("x.py"))) == ["x.py:4: 'says': write 'reports, states'"]


def test_strings_of_the_package() -> None:
    paths = sorted((ROOT / "zmqrl").rglob("*.py"))
    texts = [text for path in paths for text in texts_of(path.read_text(), path.relative_to(ROOT))]
    assert len(texts) > 1000
    found = findings(texts)
    assert not found, "\n".join(found)


def test_docstrings_that_begin_with_a_preposition_are_found() -> None:
    source = """'''From a module.'''
LIMIT = 3
'''Of a constant.'''
NAMES = "With a value that is not a docstring"
class _Record:
    '''Those of a class.'''
    field: int
    '''By a field.'''
    def method(self):
        '''
        In a method.
        '''
def _function():
    '''Itself a noun.'''
    if LIMIT:
        async def inner():
            '''As inside.'''
NAME = WIDTH = 1
'''With a constant.'''
'''It is a second string.'''
"""
    assert without_subject(source, Path("x.py")) == [
        "x.py:1: 'From a module.'",
        "x.py:3: 'Of a constant.'",
        "x.py:6: 'Those of a class.'",
        "x.py:8: 'By a field.'",
        "x.py:10: 'In a method.'",
        "x.py:17: 'As inside.'",
        "x.py:19: 'With a constant.'",
        "x.py:20: 'It is a second string.'",
    ]


def test_docstrings_of_the_package_begin_with_their_subject() -> None:
    paths = sorted((ROOT / "zmqrl").rglob("*.py"))
    found = [line for path in paths for line in without_subject(path.read_text(), path.relative_to(ROOT))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents(path: Path) -> None:
    found = findings([Text(path.relative_to(ROOT), 1, path.read_text())])
    assert not found, "\n".join(found)


def compiled(idiom: Idiom) -> re.Pattern[str]:
    """Case is ignored; a space also matches a line end."""
    return re.compile(idiom.pattern.replace(" ", r"\s+"), re.IGNORECASE)


PATTERNS = tuple((compiled(idiom), idiom.standard) for idiom in IDIOMS)


def findings(texts: list[Text]) -> list[str]:
    """`file:line: text: term` for each old wording."""
    found = []
    for text in texts:
        prose = INLINE_CODE.sub("``", text.content)
        for pattern, standard in PATTERNS:
            for match in pattern.finditer(prose):
                line = text.line + prose.count("\n", 0, match.start())
                found.append(f"{text.path}:{line}: {' '.join(match[0].split())!r}: write {standard!r}")
    return found


def texts_of(source: str, path: Path) -> list[Text]:
    """Docstrings of public definitions and attributes, and every other string that has more than one word."""
    tree = ast.parse(source)
    hidden = {id(node) for node in private_docstrings(tree, path.stem.startswith("_") and path.stem != "__init__")}
    return [Text(path, line, content) for line, content in strings(tree, hidden) if len(content.split()) > 1]


def without_subject(source: str, path: Path) -> list[str]:
    """`file:line: first line` for each docstring that begins with a preposition or pronoun, of private ones too."""
    texts = sorted((text.lineno, str(text.value)) for text in docstrings(ast.parse(source)))
    return [f"{path}:{line}: {text.strip().splitlines()[0]!r}" for line, text in texts if PREPOSITION.match(text)]


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Strings that are statements: of modules, classes and functions, and below fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def private_docstrings(tree: ast.AST, is_private: bool) -> Iterator[ast.Constant]:
    """Docstrings of private modules, classes and functions, and of everything in private classes."""
    for node in ast.iter_child_nodes(tree):
        private = is_private
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            private = is_private or (node.name.startswith("_") and not node.name.startswith("__"))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and is_private:
            yield node.value
        yield from private_docstrings(node, private)


def strings(node: ast.AST, hidden: set[int]) -> Iterator[tuple[int, str]]:
    """Line and content; a value in an f-string is `{}`."""
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
        yield node.lineno, "".join(parts)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from strings(part.value, hidden)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and id(node) not in hidden:
            yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings(child, hidden)
