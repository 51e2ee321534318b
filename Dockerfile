# One image for Airflow and for the stages, in compose and on Kubernetes: no test tools, no embedded services, a compiler only with CUDA.
#
#   docker build --tag REGISTRY/toolformer-ops:0.1.0 .                                                  torch for CPUs
#   docker build --tag REGISTRY/toolformer-ops:0.1.0-cuda --build-arg TORCH_INDEX= --build-arg DEEPSPEED=yes \
#       --build-arg RUNTIME_PACKAGES="tini gcc libc6-dev" .                                             torch from PyPI, with CUDA 13,
#       for NVIDIA's driver 580 and newer; for older ones, down to 525, with CUDA 12:
#       --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 in place of the empty one
#
# BASE_IMAGE may be any Debian or Ubuntu with Python 3.11 as `python`, its venv module, and apt. torch's wheels bring CUDA's libraries
# along; a base image needs none of them.
ARG BASE_IMAGE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

FROM ${BASE_IMAGE} AS dependencies
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv --copies /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /opt/toolformer
COPY requirements/install.py requirements/uv.lock requirements/run.lock requirements/torch.lock requirements/gpu.lock requirements/
# CPU builds of torch, a tenth of the size; empty: PyPI, whose builds have CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/uv.lock \
 && UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1 python requirements/install.py requirements/run.lock \
 && pip uninstall --yes uv \
 && pip install --no-cache-dir -r requirements/torch.lock ${TORCH_INDEX:+--index-url ${TORCH_INDEX}}
# With CUDA also DeepSpeed, which spreads a model that is finetuned over several GPUs, and bitsandbytes, whose Adam has moments in 8 bits;
# `yes` adds them, whichever index torch is from.
ARG DEEPSPEED=
RUN if [ "${DEEPSPEED}" = yes ]; then \
        DS_BUILD_OPS=0 pip install --no-cache-dir --no-deps --require-hashes --no-build-isolation -r requirements/gpu.lock; \
    fi

# The wheel, as anybody installs it, in a folder of its own: it holds the code, the DAG files, the SQL and the pod templates.
FROM dependencies AS package
COPY pyproject.toml README.md LICENSE ./
COPY toolformer_ops ./toolformer_ops
COPY dags ./dags
COPY sql ./sql
COPY deploy/pod-templates ./deploy/pod-templates
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /tmp/dist . \
 && pip install --no-cache-dir --no-deps --ignore-installed --prefix /opt/package /tmp/dist/*.whl

FROM ${BASE_IMAGE}
# With CUDA add "gcc libc6-dev": by them torch compiles norms and activations of the language model at run time, 1.2 times as fast.
# DeepSpeed compiles the operators that it uses: for these "g++", too.
ARG RUNTIME_PACKAGES=tini
RUN apt-get update \
 && apt-get install -y --no-install-recommends ${RUNTIME_PACKAGES} \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin toolformer \
 && mkdir -p /var/lib/toolformer /var/lib/airflow \
 && chown toolformer /var/lib/toolformer /var/lib/airflow
# The layer of the dependencies stays the same until a lock file changes: a new version of the code is a few megabytes to pull.
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=package /opt/package /opt/venv
ENV PATH=/opt/venv/bin:$PATH
# For settings and forms: paths that do not depend on Python's version.
RUN package=$(python -c 'import toolformer_ops; print(toolformer_ops.__path__[0])') \
 && mkdir /opt/toolformer \
 && ln -s "$package" "$package"/shipped/dags "$package"/shipped/sql "$package"/shipped/deploy /opt/toolformer/
# The user has no home folder of its own: the local hub cache, and whatever else a library keeps there, is in the state folder.
ENV HOME=/var/lib/toolformer \
    HF_HOME=/var/lib/toolformer/huggingface \
    AIRFLOW_HOME=/var/lib/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/toolformer/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    TOOLFORMER_STATE_DIR=/var/lib/toolformer \
    TOOLFORMER_CORPUS_ROOTS=/corpora \
    OMP_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1
USER 10001
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["toolformer-ops", "--help"]
