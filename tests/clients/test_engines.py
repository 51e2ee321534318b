"""The examples of docs/engines.md on Ray, Spark and Slurm: the rows are those of one process.

For whoever asks, with ENGINES=1 (`ENGINES=1 make test-slow TESTS=tests/clients/test_engines.py`, ten minutes): Ray
and Spark are installed into a folder of their own; Slurm is that of Debian (`apt-get install slurm-wlm`), and its
test is left out where it is not there.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest

from tests.documentation import blocks
from toolformer_ops import Annotator
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.on_a_file.annotate.workers import Worker
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.storage.objects.parts import FolderParts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("ENGINES"), reason="installs Ray and Spark, ten minutes; asked for by ENGINES=1"
    ),
]

TEXTS = [f"There were {n} cats and 21 dogs, a total of {n + 21} animals." for n in range(32, 152)]
PAGE = REPOSITORY / "docs" / "engines.md"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """A folder with Ray and Spark."""
    folder = tmp_path_factory.mktemp("engines")
    pip = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps"]
    lock = REPOSITORY / "requirements" / "engines.lock"
    command = [*pip, "--python", sys.executable, "--target", str(folder), "--require-hashes", "-r", str(lock)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def folder(tmp_path):
    """A folder with the texts of the page."""
    records = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


@pytest.fixture(scope="module")
def rows_of_one_process(tiny_model_dir):
    records = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    return in_order(Annotator(str(tiny_model_dir), "Calculator", proposer="tool").annotate(records))


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: str(row["call_id"]))


def example(named: str, model: Path) -> str:
    """The example of the page that holds this word, with the model of the test."""
    [code] = [code for code in blocks(PAGE, "python") if named in code]
    return code.replace('"demo"', repr(str(model)))


def run(code: str, engines: Path, folder: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(REPOSITORY), str(engines)])
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    environment |= {"RAY_raylet_start_wait_time_s": "300"}
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=environment)


def kill_an_actor(killed: list[int], ends: threading.Event) -> None:
    """Kill one process of Ray that annotates, a moment after it has begun."""
    while not (killed or ends.is_set()):
        for process in psutil.process_iter(["cmdline"]):
            name = " ".join(process.info["cmdline"] or [])
            if name.startswith("ray::") and "Annotator" in name:
                time.sleep(2)
                process.send_signal(signal.SIGKILL)
                killed.append(process.pid)
                return
        time.sleep(0.1)


def rows_of_parquet(folder: Path) -> Rows:
    rows: Rows = []
    for file in folder.glob("*.parquet"):
        rows += pyarrow.parquet.read_table(file).to_pylist()
    return in_order(rows)


def test_ray_gives_the_rows_of_one_process_though_a_worker_is_killed(
    engines, folder, tiny_model_dir, rows_of_one_process
):
    killed: list[int] = []
    ends = threading.Event()
    killer = threading.Thread(target=kill_an_actor, args=(killed, ends))
    killer.start()
    start = "import ray; ray.init(num_cpus=2, include_dashboard=False)\n"
    code = start + example("ray.data", tiny_model_dir).replace("batch_size=64", "batch_size=4")
    ended = run(code, engines, folder).wait(400)
    ends.set()
    killer.join()
    assert (ended, len(killed)) == (0, 1)
    assert rows_of_parquet(folder / "calls-of-ray") == rows_of_one_process


def test_spark_gives_the_rows_of_one_process(engines, folder, tiny_model_dir, rows_of_one_process):
    code = example("pyspark", tiny_model_dir).replace("builder.", 'builder.master("local[2]").')
    code = code.replace('json("texts.jsonl")', 'json("texts.jsonl").repartition(2)')
    assert run(code, engines, folder).wait(400) == 0
    assert rows_of_parquet(folder / "calls-of-spark") == rows_of_one_process


def slurm_configuration(folder: Path) -> str:
    """A cluster of one machine that is two nodes."""
    host = os.uname().nodename
    return f"""ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port=16818 CPUs=1 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port=16819 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurm:
    """A cluster of this machine, as two nodes of one CPU."""

    folder: Path
    environment: dict[str, str]
    daemons: list[subprocess.Popen[bytes]]

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    def start(self, *words: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self.daemons.append(subprocess.Popen(words, env=self.environment, stdout=log, stderr=log))


@pytest.fixture
def slurm(folder):
    if shutil.which("slurmctld", path="/usr/sbin") is None or os.getuid() != 0:
        pytest.skip("needs slurm-wlm and root")
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(slurm_configuration(folder))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{bin_folder}:{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": str(REPOSITORY),
    }
    cluster = Slurm(folder, environment, [])
    munge = [f"--{name}={folder}/munge.{end}" for name, end in MUNGE.items()]
    cluster.start("/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}", *munge)
    time.sleep(2)
    cluster.start("/usr/sbin/slurmctld", "-D")
    for node in ("one", "two"):
        (folder / f"spool-{node}").mkdir()
        cluster.start("/usr/sbin/slurmd", "-D", "-N", node)
    yield cluster
    for daemon in reversed(cluster.daemons):
        daemon.terminate()
        daemon.wait(30)


MUNGE = {"socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}


def test_slurm_leaves_the_files_of_one_worker_though_a_node_is_drained(slurm, folder, tiny_model_dir):
    # 1. The array job of the page; the node of its first task goes down as soon as that has put a file.
    [script] = [code for code in blocks(PAGE, "sh") if "#SBATCH" in code]
    script = script.replace("--model demo", f"--model {tiny_model_dir} --texts-a-file 4")
    (folder / "annotate.sbatch").write_text(script)
    wait_for(lambda: "idle" in slurm("sinfo", "--noheader", "--format=%T"))
    slurm("sbatch", "annotate.sbatch")
    parts = FolderParts(folder / "calls")
    wait_for(lambda: parts.names("calls/"))
    # It comes back by itself (ReturnToService), and its task, which Slurm has queued again, with it.
    slurm("scontrol", "update", "NodeName=one", "State=DOWN", "Reason=drained")
    wait_for(lambda: not slurm("squeue", "--noheader").strip())
    # 2. Beside one worker that was left alone.
    values = {
        "preset": "small_model",
        "proposer": "tool",
        "tools": ["Calculator"],
        "model": str(tiny_model_dir),
    }
    choices = RunChoices.parse({**values, "corpus": str(folder / "texts.jsonl")})
    Worker.of(Settings(), choices, f"{folder}/alone/", 4, 4).work()
    alone = FolderParts(folder / "alone")
    names = [name for name in alone.names() if name.startswith(("calls/", "ledger/"))]
    assert [name for name in parts.names() if name.startswith(("calls/", "ledger/"))] == names
    assert [parts.get(name) for name in names] == [alone.get(name) for name in names]


def wait_for(is_so: Callable[[], object], seconds: float = 400) -> None:
    """Ask again and again, until it is so."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.5)
