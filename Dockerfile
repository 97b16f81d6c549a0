# The tool layer: a case image goes in (the project at its vulnerable commit, the task's files in /ssebench), a run
# image comes out (the same with the daemon, the two users and the clean clone).
#
#   docker build --build-arg CASE_IMAGE=<case image> -t <run image> .
#   docker run --rm -p 127.0.0.1:4263:4263 <run image>
#
# Works on case images that are Debian or made from it.
ARG CASE_IMAGE
FROM ${CASE_IMAGE}
USER root

# Each RUN ends at its first failure: SHELL would say so once, but not every builder heeds it.
RUN set -eu; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        bash ca-certificates git procps python3 python3-venv; \
    rm -rf /var/lib/apt/lists/*

# The system's Python and not the case image's: the task may need another one, and both users must be able to run it.
COPY setup.py pyproject.toml /opt/ssebench/build/
COPY conf /opt/ssebench/build/conf
COPY daemon /opt/ssebench/build/daemon
COPY grading /opt/ssebench/build/grading
COPY shell /opt/ssebench/build/shell
COPY sse /opt/ssebench/build/sse
COPY tasks /opt/ssebench/build/tasks
RUN set -eu; \
    /usr/bin/python3 -m venv /opt/ssebench/venv; \
    /opt/ssebench/venv/bin/pip install --no-cache-dir --disable-pip-version-check '/opt/ssebench/build[daemon]'; \
    rm -rf /opt/ssebench/build

# The runner has no home: what a build left in one would reach graded builds.
RUN set -eu; \
    id model >/dev/null 2>&1 || useradd --create-home --shell /bin/bash model; \
    id runner >/dev/null 2>&1 || useradd --no-create-home --home-dir /nonexistent --shell /bin/bash runner

# The clean clone is taken before the tree is given away; both hold the same bytes. The answer is for root alone.
RUN set -eu; \
    source=$(/opt/ssebench/venv/bin/python -c 'from tasks.config import load_task; print(load_task("/ssebench").source)'); \
    cp -a "$source" /ssebench-repo; \
    chown -R root:root /ssebench-repo /ssebench; \
    chmod 0700 /ssebench-repo /ssebench; \
    chown -R model:model "$source"; \
    install -d -m 0700 /run/ssebench /var/lib/ssebench

ENV SSE_DAEMON_SOCKET=/tmp/sse.sock \
    SSE_ADMIN_SOCKET=/run/ssebench/admin.sock
EXPOSE 4263
ENTRYPOINT ["/opt/ssebench/venv/bin/ssebench-daemon"]
