#!/usr/bin/env python3
"""check_program.py COUPLET: the program as a user sees it: its output and streams, its exit codes, its sentences, and
that all texts made from the tables are well-formed."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

from program import COUPLET, capture, check, finish, said

TOKENIZER = os.path.abspath("data/tokenizer.json")
VERSION = open("VERSION").read().strip()


def run(*words, **options):
    done = subprocess.run(
        [COUPLET, *words], capture_output="stdout" not in options, text=True, check=False, timeout=120, **options
    )
    check(done.returncode >= 0, f"{said(words)} died of signal {-done.returncode}")
    return done


def expect(words, code, out="", err=""):
    """Checks the exit code, and parts of both streams. A failure prints one line on standard error."""
    done = run(*words)
    told = f"{said(words)}: {done.returncode} {done.stdout!r} {done.stderr!r}"
    check(
        done.returncode == code and out in done.stdout and err in done.stderr,
        f"{told}\n    wanted {code} {out!r} {err!r}",
    )
    check(
        not code
        or not words
        or done.stderr.count("\n") == 1
        and not done.stdout
        and done.stderr.startswith("couplet: "),
        f"{told}\n    wanted one sentence on standard error alone",
    )
    check(code or not done.stderr, f"{told}\n    wanted nothing on standard error")
    return done.stdout


NO_POLICY = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}


def waiting(**environment):
    """Returns how threads wait, as `couplet version` reports it."""
    lines = run("version", env=NO_POLICY | environment).stdout.splitlines()
    return next(line.split(maxsplit=1)[1] for line in lines if line.startswith("waiting "))


def check_waiting():
    """The program bounds the spinning of its threads, unless the environment sets how they wait."""
    count = waiting().split()
    check(count[0] == "GOMP_SPINCOUNT" and 0 < int(count[1]) < 100000, f"threads wait by default: {count}")
    for name, value in (("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "77")):
        got = waiting(**{name: value})
        check(got == f"{name} {value}", f"{name}={value} is not left as it is: {got}")
    with tempfile.TemporaryDirectory() as folder:  # started by its own name, not as /proc/self/exe
        shutil.copy(COUPLET, f"{folder}/renamed")
        command = [f"{folder}/renamed", "tokenize", "encode", "--tokenizer", TOKENIZER, "--ids"]
        with subprocess.Popen(command, env=NO_POLICY, stdin=subprocess.PIPE) as process:
            for _ in range(200):
                with open(f"/proc/{process.pid}/environ", "rb") as environment:
                    if b"GOMP_SPINCOUNT" in environment.read():
                        break
                time.sleep(0.05)
            with open(f"/proc/{process.pid}/comm") as file:
                name = file.read().strip()
            process.kill()
    check(name == "renamed", f"the program that was executed again is called {name}")


def check_use():
    expect([], 2, err="Usage:")
    for words in (["help"], ["--help"], ["-h"]):
        expect(words, 0, out="Verbs:\n")
    expect(["--version"], 0, out=f"couplet {VERSION}\n")
    expect(["version"], 0, out="oneDNN")
    expect(["tokenize", "--help"], 0, out="tokenize encode")
    expect(["help", "tokenize"], 0, out="tokenize decode")
    expect(["version", "x" * 5000], 2, err="does not take the argument")
    expect(["version", "--" + "x" * 5000], 2, err="has no flag")


def visible_verbs():
    lines = run("help").stdout.split("Verbs:\n")[1].split("\n\n")[0].splitlines()
    return [line[4:24].strip().split() for line in lines]


def check_verbs():
    """Every verb has help, equal in both ways, and refuses unknown words."""
    for verb in visible_verbs():
        text = expect([*verb, "--help"], 0, out="Usage:\n    couplet " + " ".join(verb))
        check(expect(["help", *verb], 0) == text, f"couplet help {' '.join(verb)} differs from --help")
        check(
            all(len(line) <= 100 for line in text.splitlines()),
            f"couplet {' '.join(verb)} --help has a line of more than 100 bytes",
        )
        expect([*verb, "--no-such-flag"], 2, err=f"{' '.join(verb)} has no flag --no-such-flag")
        if "--set SECTION" in text:
            text = expect([*verb, "--help", "all"], 0)
            for assignment, sentence in (
                ("erc.alhpa=1", "there is no setting erc.alhpa; did you mean erc.alpha?"),
                ("alpha", "--set needs SECTION.NAME=VALUE"),
                ("erc.alpha=-1", "erc.alpha is -1, but must be a number from 0 to 100"),
            ):
                check_set(verb, text, assignment, sentence)


def check_set(verb, text, assignment, sentence):
    """Checks an assignment with the words and required flags that the verb needs. Their files need not exist."""
    usage = text.split("Usage:\n")[1].splitlines()[0].split()[1 + len(verb) :]
    words = []
    for word in usage:
        if word.startswith("["):
            break
        words.append(word if word.startswith("--") else "no-such-file")
    if "erc.weight" in text:
        expect([*verb, *words, "--set", assignment], 2, err=sentence)


FEW_LINES = 100


def check_help():
    """Help is short, has sections, and shows one of them or one setting on request."""
    short, whole = run("train", "--help").stdout, run("train", "--help", "all").stdout
    check(
        short.count("\n") <= FEW_LINES and "coupling loss (12)" in short and "first:" in short,
        f"train --help has {short.count(chr(10))} lines: {short}",
    )
    section, names = None, {}
    for line in run("train", "--print-config").stdout.splitlines():
        if line and not line.startswith((" ", "#")):
            section = line.split(":")[0]
        elif line.strip() and not line.strip().startswith("#"):
            names.setdefault(section, []).append(f"{section}.{line.split(':')[0].strip()}")
    for section, settings in names.items():
        text = expect(["train", "--help", section], 0, out=f"{section}: ")
        listed = [line.strip() for line in text.splitlines() if line.startswith("    " + section)]
        check(listed == settings, f"train --help {section}: {text}, wanted {settings}")
        check(all(f"    {name}\n" in whole for name in settings), f"train --help all lacks one of {settings}")
    expect(["train", "--help", "erc.alpha"], 0, out="    erc.alpha\n        Bound of M")
    expect(["train", "no.yaml", "--help", "compute.threads"], 0, out="whole number of threads")
    check(
        expect(["help", "train", "erc"], 0) == expect(["train", "--help", "erc"], 0),
        "couplet help train erc differs from train --help erc",
    )
    expect(["help"], 0, out="couplet completion bash|zsh")
    expect(["help"], 0, out="couplet manual")
    for words in ("(numbers)", "(draws)", "(threads)"):
        check(words not in whole, f"train --help all says {words}")


def check_settings():
    """A verb lists the settings it uses, and refuses others."""
    used = {
        "eval": ["data.split", "compute.dtype"],
        "grad": ["erc.draws", "train.seed"],
        "generate": ["compute.dtype"],
        "tokenize encode": ["data.max_line_bytes"],
        "tokenize train": ["data.zstd_window_log"],
    }
    unused = {
        "eval": ["data.shuffle", "data.batch_tokens", "train.lr"],
        "grad": ["train.steps", "train.lr", "train.warmup_steps", "balance.bias_rate", "erc.start_step"],
        "generate": ["data.split"],
        "tokenize encode": ["data.train", "data.split"],
        "tokenize train": ["data.token_type", "data.special_as_text"],
    }
    for verb, names in used.items():
        text = run(*verb.split(), "--help", "all").stdout
        lacking = [name for name in names if f"    {name}\n" not in text]
        surplus = [name for name in unused[verb] if f"    {name}\n" in text]
        check(not lacking and not surplus, f"{verb} --help all lacks {lacking} and has {surplus}")
    expect(["compare", "train.steps=3"], 1, err="train.steps=3: ")  # compare has no settings: the word names a run
    for topic in ("erc.alpha", "erc"):
        same_help = run("train", "--help", topic).stdout
        check(run("help", topic).stdout == same_help != "", f"help {topic} is not train --help {topic}")


COMPUTING = ["train", "grad", "tokenize encode", "inspect", "eval", "compare", "plan", "generate"]


def check_threads():
    """--threads has equal bounds and equal help in every verb that has it."""
    for verb in COMPUTING:
        text = run(*verb.split(), "--help").stdout
        told = " ".join(text.split("    --threads N\n")[-1].split("\n    --")[0].split())
        check(
            told.startswith(
                "Threads; 0: one per processor this program may use. (a whole number "
                "of threads from 0 to 4096; default 0)"
            ),
            f"{verb} --threads: {told}",
        )
        expect([*verb.split(), "--threads", "4097"], 2, err="from 0 to 4096")


def check_written():
    """The completions parse in their shells. The manual names every verb and passes man."""
    with tempfile.TemporaryDirectory() as folder:
        for shell in ("bash", "zsh"):
            path = os.path.join(folder, shell)
            with open(path, "w") as file:
                file.write(expect(["completion", shell], 0, out="_couplet"))
            if not shutil.which(shell):
                print(f"not checked: the program {shell} is not here")
                continue
            check(
                subprocess.run([shell, "-n", path], check=False).returncode == 0,
                f"the completion of {shell} is not {shell}",
            )
    page = expect(["manual"], 0, out=".TH COUPLET 1")
    for verb in visible_verbs():
        check(f".SS couplet {' '.join(verb)}\n" in page, f"the manual has no section on {verb}")
    check("\\fBerc.alpha\\fR" in page, "the manual does not name erc.alpha")
    if not shutil.which("man"):
        print("not checked: the program man is not here")
    else:
        done = capture(["man", "--warnings", "-l", "-"], input=page, env={**os.environ, "MANROFFOPT": "-ww"})
        check(not done.returncode and not done.stderr, f"man says of the manual: {done.stderr}")
    check_bash(["version"], "--h", "--help")
    check_bash([], "vers", "version")
    check_bash(["tokenize"], "en", "encode")
    check_bash(["tokenize", "encode"], "--tok", "--tokenizer")
    check_bash(["train", "--set"], "train.l", "train.lr=")
    check_bash(["grad", "--set"], "erc.alpha", "erc.alpha=")
    check_bash(["help"], "tok", "tokenize")
    check_bash(["help", "tokenize"], "en", "encode")
    check_bash(["help", "train"], "er", "erc")
    check_bash(["train", "--help"], "er", "erc")
    check_bash(["eval", "m", "--tasks"], "hellas", "hellaswag")
    check_bash(["eval", "m", "--tasks"], "copa,hellas", "copa,hellaswag")
    check_bash(["eval", "m", "--profile"], "har", "harness")


def check_bash(words, begun, wanted):
    """Checks that bash offers a word after `couplet WORDS BEGUN`."""
    if not shutil.which("bash"):
        return
    script = (
        f'eval "$({COUPLET} completion bash)"; compopt() {{ :; }}; '
        f"COMP_WORDS=(couplet {' '.join(words)} {begun}); COMP_CWORD={len(words) + 1}; "
        '_couplet; echo "${COMPREPLY[@]}"'
    )
    done = capture(["bash", "-c", script])
    check(wanted in done.stdout.split(), f"bash offers {done.stdout!r} for {words} {begun}: {done.stderr}")


def check_output():
    """A full disk and a closed stream give exit code 1 and a sentence. A pipe without a reader gives code 1 alone."""

    def told(name, sentence, words=("manual",), **options):
        done = run(*words, stderr=subprocess.PIPE, **options)
        check(
            done.returncode == 1 and sentence in done.stderr and (sentence or not done.stderr),
            f"{name}: {words}: {done.returncode} {done.stderr!r}",
        )

    cannot = "cannot write to the standard output"
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            told("a full disk", cannot, stdout=full)
    told("a closed stream", cannot, stdout=None, preexec_fn=lambda: os.close(1))
    for words in (
        ["manual"],
        ["version"],
        ["train", "--help"],
        ["completion", "bash"],
        ["plan", "configs/tiny.yaml", "--json", "-"],
    ):
        reading, writing = os.pipe()
        os.close(reading)
        told("a closed pipe", "", words, stdout=writing)
        os.close(writing)
    reading, writing = os.pipe()
    os.close(reading)
    told("a closed pipe and a fault", "absent.yaml", ["plan", "absent.yaml"], stdout=writing)
    os.close(writing)
    for words in ("train --help", "manual", "completion bash"):
        done = capture(["bash", "-c", f"{COUPLET} {words} | head -1; echo ${{PIPESTATUS[0]}}"])
        check(not done.stderr and done.stdout.splitlines()[1] in ("0", "1"), f"{words} | head -1: {done}")


check_waiting()
check_use()
check_verbs()
check_help()
check_settings()
check_threads()
check_written()
check_output()
sys.exit(finish())
