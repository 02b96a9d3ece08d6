#!/usr/bin/env python3
"""make_parts.py: writes parts.jsonl: every part that Hugging Face's tokenizers can write into a tokenizer.json, put
into a small tokenizer of this folder, and the ids that the library then makes of the texts of vectors-NAME.jsonl. Needs
tokenizers."""

import json
import pathlib

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
GPT2, OLMO2, NEOX = "gpt2", "allenai_dolma2", "allenai_gpt-neox-olmo-dolma-v1_5"


def load(name):
    return json.loads((HERE / f"{name}.json").read_text())


def typed(name, **members):
    return {"type": name, **members}


def several(key, *members):
    return typed("Sequence", **{key: list(members)})


def normalizers():
    idle = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": None, "lowercase": False}
    nfc, still = typed("NFC"), typed("Strip", strip_left=False, strip_right=False)
    one = [typed(name) for name in ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "Nmt", "ByteLevel")]
    one += [
        still,
        typed("Strip", strip_left=True, strip_right=False),
        typed("Strip", strip_left=False, strip_right=True),
        typed("BertNormalizer", **idle),
        *(typed("BertNormalizer", **{**idle, key: True}) for key in idle),
        typed("Replace", pattern={"String": "a"}, content="a"),
        typed("Replace", pattern={"String": "a"}, content="b"),
        typed("Replace", pattern={"Regex": "[ab]"}, content="c"),
        typed("Prepend", prepend="_"),
        typed("Precompiled", precompiled_charsmap="AAAAAA=="),
    ]
    yield from one
    yield several("normalizers")
    for other in [
        typed("Lowercase"),
        still,
        several("normalizers"),
        several("normalizers", still, several("normalizers", nfc)),
    ]:
        yield several("normalizers", nfc, other)
        yield several("normalizers", other, nfc)


def byte_level(prefix=False, regex=True):
    return typed("ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


def split(pattern, behavior="Isolated", invert=False):
    return typed("Split", pattern=pattern, behavior=behavior, invert=invert)


def pre_tokenizers(own, other):
    """Yields the pre-tokenizers of a tokenizer with the pattern `own`. `other` is the pattern of the other kind."""
    behaviors = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    rest = byte_level(regex=False)
    yield from (byte_level(), rest, byte_level(True), byte_level(True, False), several("pretokenizers"))
    for behavior in behaviors:
        for invert in (False, True):
            yield several("pretokenizers", split(own, behavior, invert), rest)
    yield several("pretokenizers", split(own))
    for last in (byte_level(), rest, byte_level(True, False)):
        yield several("pretokenizers", split(own), last)
        yield several("pretokenizers", split(own), split(own), last)
        yield several("pretokenizers", split(own), last, last)
        yield several("pretokenizers", split(own), split(other), last)
        yield several("pretokenizers", several("pretokenizers", split(own)), several("pretokenizers", last))
    yield several("pretokenizers", split({"String": own["Regex"]}), rest)
    yield several("pretokenizers", split({"String": " "}), rest)
    yield several("pretokenizers", split({"Regex": "\\s+"}), rest)


def other_pre_tokenizers():
    for part in (
        typed("BertPreTokenizer"),
        typed("CharDelimiterSplit", delimiter="-"),
        typed("Digits", individual_digits=True),
        typed("Digits", individual_digits=False),
        typed("FixedLength", length=4),
        typed("Metaspace", replacement="\u2581", prepend_scheme="always", split=True),
        typed("Whitespace"),
        typed("Punctuation", behavior="Isolated"),
        typed("UnicodeScripts"),
        typed("WhitespaceSplit"),
    ):
        yield part
        yield several("pretokenizers", part, byte_level())


def template(*single, ids=(0,)):
    pieces = {
        "A": {"Sequence": {"id": "A", "type_id": 0}},
        "B": {"Sequence": {"id": "B", "type_id": 0}},
        "T": {"SpecialToken": {"id": "T", "type_id": 1}},
    }
    tokens = {"T": {"id": "T", "ids": list(ids), "tokens": ["T"] * len(ids)}}
    return typed(
        "TemplateProcessing",
        single=[pieces[name] for name in single],
        special_tokens=tokens,
        pair=[pieces["A"], pieces["B"]],
    )


def post_processors():
    byte, pair = byte_level(True), {"sep": ["s", 1], "cls": ["c", 2]}
    one = [
        byte,
        template("A"),
        template("T", "A"),
        template("A", "T"),
        template("A", "T", ids=()),
        template("A", "A"),
        template("T"),
        template(),
        template("A", "B"),
        typed("BertProcessing", **pair),
        typed("RobertaProcessing", trim_offsets=True, add_prefix_space=False, **pair),
    ]
    yield from (None, several("processors"), *one)
    yield from (several("processors", byte, several("processors", part)) for part in one)


def decoders():
    yield from (None, several("decoders"), byte_level(), several("decoders", byte_level(), typed("Fuse")))
    yield from (
        typed("BPEDecoder", suffix="</w>"),
        typed("ByteFallback"),
        typed("WordPiece", prefix="##", cleanup=True),
        typed("CTC", pad_token="<pad>", word_delimiter_token="|", cleanup=True),
        typed("Strip", content=" ", start=1, stop=0),
        typed("Metaspace", replacement="\u2581", prepend_scheme="always", split=True),
        typed("Replace", pattern={"String": "_"}, content=" "),
    )


def limits():
    for direction in ("Left", "Right"):
        yield "truncation", {"direction": direction, "max_length": 3, "strategy": "LongestFirst", "stride": 0}
        for strategy in ("BatchLongest", {"Fixed": 12}):
            yield (
                "padding",
                {
                    "strategy": strategy,
                    "direction": direction,
                    "pad_to_multiple_of": 8,
                    "pad_id": 0,
                    "pad_type_id": 0,
                    "pad_token": "x",
                },
            )


OPTIONS = {
    "dropout": (None, 0.0, 1.0),
    "unk_token": (None, "<unk>", "!"),
    "continuing_subword_prefix": (None, "", "##"),
    "end_of_word_suffix": (None, "", "</w>"),
    "fuse_unk": (False, True),
    "byte_fallback": (False, True),
    "ignore_merges": (False, True),
}


def added_tokens(name):
    own, vocab = load(name)["added_tokens"], load(name)["model"]["vocab"]
    after = len(vocab) + sum(token["content"] not in vocab for token in own)
    switches = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}

    def new(*ids, **given):
        return [{"id": after + id, "content": text, **switches, **given} for id, text in zip(ids, ("the ", "a ", "1 "))]

    yield from (new(0, **given) for given in ({}, *({switch: True} for switch in switches)))
    yield from (new(0, 1, 2), new(1, 0), new(1), new(0, 2), new(-1))


def cases():
    """Yields (tokenizer, place in its file, the part that replaces it or is added to the list there)."""
    regex = {
        GPT2: {"Regex": "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
        OLMO2: load(OLMO2)["pre_tokenizer"]["pretokenizers"][0]["pattern"],
    }
    for value in normalizers():
        yield NEOX, ("normalizer",), value
    for own, other in ((GPT2, OLMO2), (OLMO2, GPT2)):
        for value in pre_tokenizers(regex[own], regex[other]):
            yield own, ("pre_tokenizer",), value
    for value in other_pre_tokenizers():
        yield GPT2, ("pre_tokenizer",), value
    for value in post_processors():
        yield GPT2, ("post_processor",), value
    for value in decoders():
        yield GPT2, ("decoder",), value
    for where, value in limits():
        yield GPT2, (where,), value
    for option, values in OPTIONS.items():
        for value in values:
            yield GPT2, ("model", option), value
    for name in (GPT2, NEOX):
        for value in added_tokens(name):
            yield name, ("added_tokens",), value
    yield GPT2, ("model", "merges"), load(GPT2)["model"]["merges"][:40]  # the merges again, after the others


def digest(tokenizer, texts):
    """Returns the digest of the ids of all texts (FNV-1a, 64 bits, an id at a time), or None if the library fails."""
    hashed = 0xCBF29CE484222325
    try:
        made = Tokenizer.from_str(json.dumps(tokenizer))
        made.no_truncation()
        made.no_padding()
        for text in texts:
            for id in (*made.encode(text).ids, 0xFFFFFFFF):
                hashed = (hashed ^ id) * 0x100000001B3 % 2**64
    except BaseException as error:  # a panic of Rust is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return None
    return f"{hashed:016x}"


def lines():
    texts = {
        name: [json.loads(line)["text"] for line in (HERE / f"vectors-{name}.jsonl").open()]
        for name in (GPT2, OLMO2, NEOX)
    }
    for name in texts:
        yield {"of": name, "at": [], "ids": digest(load(name), texts[name])}
    for name, at, value in cases():
        tokenizer = part = load(name)
        for key in at[:-1]:
            part = part[key]
        part[at[-1]] = part[at[-1]] + value if isinstance(part.get(at[-1]), list) else value
        yield {"of": name, "at": list(at), "value": value, "ids": digest(tokenizer, texts[name])}


if __name__ == "__main__":
    (HERE / "parts.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines()))
