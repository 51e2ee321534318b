"""Small files in the formats in which the data sets are published, written by the tests that read them."""
# ruff: noqa: E501 - records as they are published, a line each

import json
from pathlib import Path

ASDIV = """<?xml version="1.0" encoding="UTF-8" ?>
<Machine-Reading-Corpus-File><ProblemSet>
<Problem ID="1"><Body>Seven red apples are in the basket.</Body><Question>How many apples?</Question><Answer>9 (apples)</Answer></Problem>
<Problem ID="2"><Body>Ann has 5 pens and Bo has 3.</Body><Question>Does Ann have more?</Question><Answer>Yes</Answer></Problem>
</ProblemSet></Machine-Reading-Corpus-File>
"""


def lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def mlqa(question: str) -> str:
    """A file in SQuAD's format with a question about a paragraph in English."""
    answer = {"text": "Oslo", "answer_start": 0}
    asked = [{"id": "1", "question": question, "answers": [answer, answer]}]
    paragraphs = [{"context": "Oslo is the capital of Norway.", "qas": asked}]
    return json.dumps({"version": "1.0", "data": [{"title": "Norway", "paragraphs": paragraphs}]})


YES, NO = {"rater": "1", "judgment": "yes"}, {"rater": "2", "judgment": "no"}
OSLO = {
    "sub_label": "Norway",
    "obj_label": "Oslo",
    "evidences": [{"masked_sentence": "[MASK] is in Norway."}],
}
YAMAHA = {"wikidata_id": "Q1085474", "name": "Yamaha Motor Racing"}
FILES = {
    # LAMA, as the archive lays it out, with its folder `data`.
    "lama/data/Squad/test.jsonl": lines(
        {"masked_sentences": ["Newton played as [MASK] during Super Bowl 50."], "obj_label": "quarterback", "id": "0", "sub_label": "Squad"},
        {"masked_sentences": ["The colour of the sky is [MASK]."], "obj_label": "blue", "id": "1", "sub_label": "Squad"},
    ),
    "lama/data/Google_RE/place_of_birth_test.jsonl": lines(
        {"sub_label": "Ada Holm", "obj_label": "Oslo", "masked_sentences": ["Ada Holm came from [MASK] to Paris ."], "evidences": [], "judgments": [YES, NO]},
        {"sub_label": "Ada Holm", "obj_label": "Oslo", "masked_sentences": ["Holm ( [MASK] , 1900 ) was a painter ."], "evidences": [], "judgments": [YES]},
        {"sub_label": "Bo Lind", "obj_label": "Bergen", "masked_sentences": ["Bo Lind was born in [MASK] ."], "evidences": [], "judgments": [NO, NO, YES]},
    ),
    "lama/data/Google_RE/date_of_birth_test.jsonl": lines(
        {"sub_label": "Cy Moe", "obj_label": "1941", "masked_sentences": ["Cy Moe (born [MASK]) is a writer ."], "evidences": [], "judgments": [YES]},
    ),
    "lama/data/relations.jsonl": lines(
        {"relation": "P19", "template": "[X] was born in [Y] .", "label": "place of birth", "type": "N-1"},
        {"relation": "P36", "template": "The capital of [X] is [Y] .", "label": "capital", "type": "1-1"},
        {"relation": "P30", "template": "[Y] holds [X] .", "label": "continent", "type": "N-1"},
        {"relation": "P99", "template": "[X] is [Y] .", "label": "of no file", "type": "N-1"},
    ),
    "lama/data/TREx/P36.jsonl": lines(OSLO, OSLO, {**OSLO, "sub_label": "Italy", "obj_label": "Rome"}),
    "lama/data/TREx/P19.jsonl": lines({"sub_label": "Dante", "obj_label": "Florence", "evidences": []}),
    "lama/data/TREx/P30.jsonl": lines(OSLO),
    # Word problems.
    "asdiv/dataset/ASDiv.xml": ASDIV,
    "svamp/SVAMP.json": json.dumps([{"Body": "A pack costs 76 dollars", "Question": "How much is it?", "Answer": 51.0}]),
    "mawps/AddSub.json": json.dumps(
        [
            {"iIndex": 1, "sQuestion": "Joan found 70.0 seashells . How many are left of 27.0 ?", "lEquations": ["X=(70.0-27.0)"], "lSolutions": [43.0]},
            {"iIndex": 2, "sQuestion": "Two numbers ?", "lEquations": [], "lSolutions": [1.0, 2.0]},
        ]
    ),
    "gsm8k/test.jsonl": lines(
        {"question": "She sold 48/2 clips. How many?", "answer": "48/2 = <<48/2=24>>24 clips.\n#### 24"}
    ),
    # Open questions.
    "webquestions/webq-test.jsonl": lines(
        {"id": "0", "question": "what does jamaican people speak?", "answer": ["Jamaican English", "Patois"]}
    ),
    "nq_open/NQ-open.dev.jsonl": lines(
        {"question": "when was the last time anyone was on the moon", "answer": ["December 1972"]}
    ),
    "triviaqa/triviaqa-unfiltered/unfiltered-web-dev.json": json.dumps(
        {"Data": [{"Question": "Which Sinclair won in 1930?", "Answer": {"Value": "Sinclair Lewis", "Aliases": ["Harry Sinclair Lewis"]}}]}
    ),
    # Questions in another language.
    "mlqa/MLQA_V1/test/test-context-en-question-es.json": mlqa("¿Cuál es la capital?"),
    # Facts of a year.
    "templama/test.json": lines(
        {"query": "Valentino Rossi plays for _X_.", "answer": [YAMAHA], "date": "2010", "id": "Q169814_P54_2010", "relation": "P54"},
        {"query": "_X_ is the chair of Acme.", "answer": [YAMAHA], "date": "2011", "id": "Q1_P488_2011", "relation": "P488"},
    ),
    # Running text.
    "wikitext2/wiki.test.tokens": (
        " \n = Robert <unk> = \n \n Robert <unk> is an English actor . \n = = Career = = \n He acts . \n"
        " \n = Du Fu = \n \n Du Fu was a poet . \n"
    ),
    "documents/dev.jsonl": lines({"text": " Some document."}, {"text": "Another one."}),
}  # fmt: skip
"""By path below the data folder."""
MATH = ("asdiv", "svamp", "mawps", "gsm8k")
QUESTIONS = ("webquestions", "nq_open", "triviaqa")


def write(data: Path, *data_sets: str) -> Path:
    """Write the files of the named folders, or of all, below `data`; returns it."""
    for path, text in FILES.items():
        if not data_sets or path.partition("/")[0] in data_sets:
            write_file(data / path, text)
    return data


def write_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
