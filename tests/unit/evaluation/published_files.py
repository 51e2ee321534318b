"""Small files in the formats in which the data sets are published, written by the tests that read them."""
# ruff: noqa: E501, RUF001 - records as they are published, a line each

import json
from pathlib import Path

ASDIV = """<?xml version="1.0" encoding="UTF-8" ?>
<Machine-Reading-Corpus-File>
  <ProblemSet>
    <Problem ID="nluds-0001" Grade="1" Source="http://www.k5learning.com">
      <Body>Seven red apples and two green apples are in the basket.</Body>
      <Question>How many apples are in the basket?</Question>
      <Solution-Type>Addition</Solution-Type>
      <Answer>9 (apples)</Answer>
      <Formula>7+2=9</Formula>
    </Problem>
    <Problem ID="nluds-0002" Grade="2" Source="http://example.org">
      <Body>Ann has 5 pens and Bo has 3.</Body>
      <Question>Does Ann have more?</Question>
      <Solution-Type>Comparison</Solution-Type>
      <Answer>Yes</Answer>
      <Formula>5&gt;3</Formula>
    </Problem>
  </ProblemSet>
</Machine-Reading-Corpus-File>
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def write_lama(data: Path) -> None:
    """As the archive lays them out, with its folder `data`."""
    root = data / "lama" / "data"
    write(
        root / "Squad" / "test.jsonl",
        lines(
            {"masked_sentences": ["Newton played as [MASK] during Super Bowl 50."], "obj_label": "quarterback", "id": "0", "sub_label": "Squad"},
            {"masked_sentences": ["The colour of the sky is [MASK]."], "obj_label": "blue", "id": "1", "sub_label": "Squad"},
        ),
    )  # fmt: skip
    yes, no = {"rater": "1", "judgment": "yes"}, {"rater": "2", "judgment": "no"}
    write(
        root / "Google_RE" / "place_of_birth_test.jsonl",
        lines(
            {"sub_label": "Ada Holm", "obj_label": "Oslo", "masked_sentences": ["Ada Holm came from [MASK] to Paris ."], "evidences": [], "judgments": [yes, no]},
            {"sub_label": "Ada Holm", "obj_label": "Oslo", "masked_sentences": ["Holm ( [MASK] , 1900 ) was a painter ."], "evidences": [], "judgments": [yes]},
            {"sub_label": "Bo Lind", "obj_label": "Bergen", "masked_sentences": ["Bo Lind was born in [MASK] ."], "evidences": [], "judgments": [no, no, yes]},
        ),
    )  # fmt: skip
    write(
        root / "Google_RE" / "date_of_birth_test.jsonl",
        lines({"sub_label": "Cy Moe", "obj_label": "1941", "masked_sentences": ["Cy Moe (born [MASK]) is a writer ."], "evidences": [], "judgments": [yes]}),
    )  # fmt: skip
    write(
        root / "relations.jsonl",
        lines(
            {"relation": "P19", "template": "[X] was born in [Y] .", "label": "place of birth", "type": "N-1"},
            {"relation": "P36", "template": "The capital of [X] is [Y] .", "label": "capital", "type": "1-1"},
            {"relation": "P30", "template": "[Y] holds [X] .", "label": "continent", "type": "N-1"},
            {"relation": "P99", "template": "[X] is [Y] .", "label": "of no file", "type": "N-1"},
        ),
    )
    fact = {"sub_label": "Norway", "obj_label": "Oslo", "evidences": [{"masked_sentence": "[MASK] is in Norway."}]}
    write(root / "TREx" / "P36.jsonl", lines(fact, fact, {**fact, "sub_label": "Italy", "obj_label": "Rome"}))
    write(root / "TREx" / "P19.jsonl", lines({"sub_label": "Dante", "obj_label": "Florence", "evidences": []}))
    write(root / "TREx" / "P30.jsonl", lines(fact))


def write_math(data: Path) -> None:
    write(data / "asdiv" / "dataset" / "ASDiv.xml", ASDIV)
    svamp = [
        {
            "ID": "chal-1",
            "Body": "Each pack of dvds costs 76 dollars. If there is a discount of 25 dollars on each pack",
            "Question": "How much do you have to pay to buy each pack?",
            "Equation": "( 76.0 - 25.0 )",
            "Answer": 51.0,
            "Type": "Subtraction",
        }
    ]
    write(data / "svamp" / "SVAMP.json", json.dumps(svamp))
    mawps = [
        {"iIndex": 1, "sQuestion": "Joan found 70.0 seashells . How many are left of 27.0 ?", "lEquations": ["X=(70.0-27.0)"], "lSolutions": [43.0]},
        {"iIndex": 2, "sQuestion": "Two numbers ?", "lEquations": [], "lSolutions": [1.0, 2.0]},
    ]  # fmt: skip
    write(data / "mawps" / "AddSub.json", json.dumps(mawps))
    write(
        data / "gsm8k" / "test.jsonl",
        lines({"question": "She sold 48/2 clips. How many?", "answer": "48/2 = <<48/2=24>>24 clips.\n#### 24"}),
    )


def write_qa(data: Path) -> None:
    write(
        data / "webquestions" / "webq-test.jsonl",
        lines({"id": "0", "question": "what does jamaican people speak?", "answer": ["Jamaican English", "Patois"]}),
    )
    write(
        data / "nq_open" / "NQ-open.dev.jsonl",
        lines({"question": "when was the last time anyone was on the moon", "answer": ["December 1972"]}),
    )
    trivia = {
        "Data": [
            {
                "Question": "Which American-born Sinclair won the Nobel Prize for Literature in 1930?",
                "QuestionId": "tc_1",
                "Answer": {"Value": "Sinclair Lewis", "Aliases": ["Harry Sinclair Lewis", "Sinclair Lewis"]},
            }
        ]
    }
    write(data / "triviaqa" / "triviaqa-unfiltered" / "unfiltered-web-dev.json", json.dumps(trivia))


def write_mlqa(data: Path) -> None:
    for language, question in (("es", "¿Cuál es la capital?"), ("zh", "首都是哪里？"), ("ar", "ما هي العاصمة؟")):
        squad = {
            "version": "1.0",
            "data": [
                {
                    "title": "Norway",
                    "paragraphs": [
                        {
                            "context": "Oslo is the capital of Norway.",
                            "qas": [
                                {
                                    "id": "1",
                                    "question": question,
                                    "answers": [
                                        {"text": "Oslo", "answer_start": 0},
                                        {"text": "Oslo", "answer_start": 0},
                                    ],
                                }
                            ],
                        }
                    ],
                }
            ],
        }
        write(data / "mlqa" / "MLQA_V1" / "test" / f"test-context-en-question-{language}.json", json.dumps(squad))


def write_temporal(data: Path) -> None:
    yamaha = {"wikidata_id": "Q1085474", "name": "Yamaha Motor Racing"}
    write(
        data / "templama" / "test.json",
        lines(
            {"query": "Valentino Rossi plays for _X_.", "answer": [yamaha], "date": "2010", "id": "Q169814_P54_2010", "relation": "P54"},
            {"query": "_X_ is the chair of Acme.", "answer": [yamaha], "date": "2011", "id": "Q1_P488_2011", "relation": "P488"},
        ),
    )  # fmt: skip


def write_texts(data: Path) -> None:
    write(
        data / "wikitext2" / "wiki.test.tokens",
        " \n = Robert <unk> = \n \n Robert <unk> is an English actor . \n = = Career = = \n He acts . \n"
        " \n = Du Fu = \n \n Du Fu was a poet . \n",
    )
    write(data / "documents" / "dev.jsonl", lines({"text": "Some document."}, {"text": "Another one."}))


def write_all(data: Path) -> Path:
    for writer in (write_lama, write_math, write_qa, write_mlqa, write_temporal, write_texts):
        writer(data)
    return data
