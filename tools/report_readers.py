"""A rule of check_layers.py: the program measures, trains and writes JSON; code that reads this JSON is not C.

No file of src/ reads a report: the output of --json, documents.json, the metrics of a finished run. READERS are the
files that open JSON at all, each with its documents. METRICS name a file of metrics or losses. Markup belongs to the
page's template (report/). No file has a format of TensorBoard or lm-evaluation-harness."""

import re

READERS = {
    "src/app/provenance.c": "checksums.json of a checkpoint",
    "src/checkpoint/safetensors_header.c": "the header of a safetensors file",
    "src/checkpoint/stored.c": "config.json of a checkpoint",
    "src/checkpoint/stored_files.c": "the index of a checkpoint",
    "src/cli/verbs/cmd_grad.c": "ids that the user gives",
    "src/cli/arguments/output_paths.c": "whether an output may be replaced",
    "src/cli/verbs/train_summary.c": "the summary at the end of a run: start.json, metrics.jsonl",
    "src/data/documents.c": "texts to encode",
    "src/data/shard_open.c": "shards.json",
    "src/data/shard_whole.c": "shards.json",
    "src/eval/journal.c": "answers of an interrupted evaluation, to go on",
    "src/eval/prompts/fewshot.c": "the examples of a task",
    "src/eval/prompts/questions_rows.c": "the questions of a task",
    "src/eval/prompts/rows.c": "a row of the files above",
    "src/eval/prompts/rows_common.c": "a row of the files above",
    "src/eval/prompts/rows_json.c": "a row of the files above",
    "src/eval/run/runner.c": "answers from other ranks",
    "src/io/json.c": "parses",
    "src/io/json_pull.c": "parses",
    "src/parallel/gather.c": "settings from other ranks",
    "src/remote/hub.c": "a model hub's list of files",
    "src/store/checkpoint.c": "state.json",
    "src/store/gguf_vocabulary.c": "the configuration of a tokenizer",
    "src/store/hf.c": "a tokenizer",
    "src/store/hf_config.c": "config.json of a model folder",
    "src/store/run_dir.c": "checksums.json and state.json",
    "src/tokenizer/load.c": "a tokenizer",
    "src/train/metrics_file.c": "resume: metrics.jsonl is cut back to the checkpoint",
    "src/train/trainer.c": "resume: the settings in state.json or start.json",
}
METRICS = {
    "src/app/score_documents.c": "writes documents.json",
    "src/cli/verbs/train_summary.c": "the summary at the end of a run",
    "src/store/run_dir.c": "the names that a run's folder holds",
    "src/train/run.c": "writes metrics.jsonl, and cuts it for resume",
}
RULES = (
    (r"\b(?:cpl_json_(?:load|parse|pull_start|pick)|json_load|cpl_rows_open)\w*\(", READERS, "reads JSON"),
    (r'"[^" ]*(?:metrics\.jsonl|documents\.json)[^" ]*"', METRICS, "names a report"),
    (r'"[^"\n]*<(?:svg|canvas|html|head|body|table|div|p|script)\b', ("src/report/", "src/io/file.c"), "draws"),
    (r"tfevents|masked_crc|acc,none|doc_hash|higher_is_better|n-samples", (), "speaks another program's format"),
)


def check(files):
    """Returns all faults in {path: text}: actions that are not permitted, and permitted actions that do not occur."""
    code = {path: re.sub(r"/\*.*?\*/", "", text, flags=re.S) for path, text in files.items() if not path.endswith(".h")}
    bad = []
    for pattern, permitted, what in RULES:
        does = sorted(path for path in code if re.search(pattern, code[path]))
        bad += [f"{path}: {what}, which Python does" for path in does if not path.startswith(tuple(permitted))]
        done = [place for place in permitted if not any(path.startswith(place) for path in does)]
        bad += [f"tools/report_readers.py permits {place}, which {what} no more" for place in done]
    return bad
