"""A part of a library that is not used is not imported, and nobody outside the import of that library meets its stand-in."""

import subprocess
import sys

import pytest

from toolformer_ops.language_model.models.late_imports import imported_when_used


def test_a_module_or_function_is_imported_when_it_is_used(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with imported_when_used("colorsys", "subprocess"):
        import colorsys

        assert "rgb_to_hsv" not in vars(colorsys)
        assert sys.modules["subprocess"] is subprocess  # which was there before
    assert "colorsys" not in sys.modules
    assert colorsys.rgb_to_hsv(0.0, 0.0, 1.0)[2] == 1.0
    monkeypatch.delitem(sys.modules, "colorsys")
    with imported_when_used("colorsys:rgb_to_hsv"):
        from colorsys import rgb_to_hsv

        assert rgb_to_hsv(0.0, 0.0, 1.0)[2] == 1.0
        from colorsys import hsv_to_rgb  # the module is itself again
    monkeypatch.delitem(sys.modules, "colorsys")
    assert rgb_to_hsv(*hsv_to_rgb(0.0, 0.0, 0.5))[2] == 0.5


def test_the_method_imports_no_database_with_no_torch():
    program = (
        "import importlib, pkgutil, sys; import toolformer_ops.annotation as room; "
        "[importlib.import_module(f'{room.__name__}.{found.name}') for found in pkgutil.iter_modules(room.__path__)]; "
        "assert not {'sqlalchemy', 'psycopg2', 'boto3', 'torch', 'airflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


@pytest.mark.parametrize(
    "kind",
    ["toolformer_ops.tools.databases.sqlite_queries", "toolformer_ops.tools.functions.python_function"],
)
def test_the_process_of_a_tool_imports_no_settings(kind):
    program = (
        f"import sys, toolformer_ops.tools.files.worker, {kind}; "
        "assert not {'toolformer_ops.config', 'pydantic_settings', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


@pytest.mark.slow
def test_a_model_or_the_measurement_of_a_gpu_imports_no_more_than_it_needs(tiny_model_dir):
    program = (
        "import sys; import benchmarks.gpu.__main__; "
        "assert not {'sqlalchemy', 'psycopg2', 'boto3', 'airflow', 'great_expectations'} & set(sys.modules); "
        "from toolformer_ops.language_model.models.loading import load_weights; "
        "load_weights(sys.argv[1], None, 'float32', 'cpu', 1); "
        "assert 'scipy.optimize' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tiny_model_dir)], check=True, timeout=600)
