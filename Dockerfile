# The image of docker-compose.yml: Airflow, and the stages that it starts. For a GPU, build FROM an image with CUDA and the same Python.
FROM python:3.11.13-slim-bookworm

RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc g++ libc6-dev tini \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/toolformer
COPY requirements.lock requirements-binaries.lock requirements-gpu.lock ./
# CPU builds of torch, a tenth of the size; leave the argument empty for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir torch==2.13.0 ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} \
 && pip install --no-cache-dir -r requirements.lock \
 && pip install --no-cache-dir --no-deps --require-hashes -r requirements-binaries.lock

# With CUDA also DeepSpeed, which spreads a model that is finetuned over several GPUs.
RUN if [ -z "${TORCH_INDEX}" ]; then \
        DS_BUILD_OPS=0 pip install --no-cache-dir --no-build-isolation -r requirements-gpu.lock; \
    fi

COPY pyproject.toml README.md ./
COPY toolformer_ops ./toolformer_ops
COPY dags ./dags
COPY deploy ./deploy
COPY sql ./sql
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
 && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin toolformer \
 && mkdir -p /var/lib/toolformer /var/lib/airflow \
 && chown toolformer /var/lib/toolformer /var/lib/airflow

ENV AIRFLOW_HOME=/var/lib/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/toolformer/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    TOOLFORMER_STATE_DIR=/var/lib/toolformer \
    OMP_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1

USER 10001
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["toolformer-ops", "--help"]
