# Sourced by the prepare.sh of every task of datasets/: lays a task out without a container.
#
#   ROOT            where (default /): $ROOT/src/<project>, $ROOT/ssebench, $ROOT/ssebench-repo, $ROOT/opt/<task>
#   SSE_AGENT_USER  who owns the source tree (default model; without root: the caller)
#   TASK_CACHE      where downloads are kept (default /var/cache/ssebench, without root ~/.cache/ssebench)
#
# The result is that of the task's Dockerfile. Upstream code is downloaded here and stays here: nothing of it is in
# this repository. Only the system's Python is used, for a per-user one cannot run as another user.
set -euo pipefail
umask 022

ROOT=${ROOT:-/}
ROOT=${ROOT%/}
TASK=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
ID=$(basename "$TASK")
if [ "$(id -u)" = 0 ]; then
    TASK_CACHE=${TASK_CACHE:-/var/cache/ssebench}
else
    TASK_CACHE=${TASK_CACHE:-${HOME:?}/.cache/ssebench}
fi
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
TREE=$WORK/tree # a task's prepare.sh fills it with the project at the vulnerable version
OPT=$ROOT/opt/$ID # what the task's scripts need beside the project
mkdir -p "$TREE"

fail() {
    echo "$ID: $*" >&2
    exit 1
}

# require COMMAND…: end with one line that names all that are missing
require() {
    local command missing=
    for command in "$@"; do
        command -v "$command" >/dev/null || missing+=" $command"
    done
    [ -z "$missing" ] || fail "missing:$missing; install the Debian packages in $TASK/packages:" \
        "apt-get install $(cut -d' ' -f1 "$TASK/packages" | tr '\n' ' ')"
}

# quietly COMMAND…: its output is shown only when it fails
quietly() {
    "$@" >"$WORK/log" 2>&1 || {
        cat "$WORK/log" >&2
        fail "failed: $*"
    }
}

# unpack ARCHIVE: a release into $TREE, without its top folder
unpack() {
    tar -xzf "$1" --no-same-owner --strip-components=1 -C "$TREE"
}

# fetch_pypi NAME VERSION: the source release of a Python package into $TREE
fetch_pypi() {
    local name=$1 version=$2 store=$TASK_CACHE/pypi-$1-$2
    if [ ! -d "$store" ]; then
        mkdir -p "$TASK_CACHE"
        # A venv for its pip: Debian's Python has none of its own. For this package alone no wheel: what builds its
        # metadata may come as one.
        quietly /usr/bin/python3 -m venv "$WORK/downloader"
        quietly "$WORK/downloader/bin/pip" download --disable-pip-version-check --no-deps --no-binary "$name" \
            --dest "$WORK/download" "$name==$version"
        keep_download "$store"
    fi
    unpack "$store"/*.tar.gz
}

# fetch_npm NAME VERSION: a published JavaScript package into $TREE
fetch_npm() {
    local name=$1 version=$2 store=$TASK_CACHE/npm-$1-$2
    if [ ! -d "$store" ]; then
        mkdir -p "$TASK_CACHE" "$WORK/download"
        (cd "$WORK/download" && quietly npm pack --silent "$name@$version") || exit 1
        keep_download "$store"
    fi
    unpack "$store"/*.tgz
}

# The rename makes a download appear whole or not at all; a second run that was faster wins.
keep_download() {
    local partial
    partial=$(mktemp -d "$1.XXXXXX")
    cp "$WORK"/download/* "$partial/"
    mv -T "$partial" "$1" 2>/dev/null || rm -rf "$partial"
}

# make_venv: $OPT/venv with what the task's requirements.txt lists
make_venv() {
    cmp -s "$OPT/requirements.txt" "$TASK/requirements.txt" && return
    rm -rf "$OPT"
    mkdir -p "$OPT"
    quietly /usr/bin/python3 -m venv "$OPT/venv"
    quietly "$OPT/venv/bin/python" -m pip install --disable-pip-version-check -r "$TASK/requirements.txt"
    cp "$TASK/requirements.txt" "$OPT/"
}

# make_node_modules: $OPT/node_modules with what the task's package.json lists
make_node_modules() {
    cmp -s "$OPT/package.json" "$TASK/package.json" && return
    rm -rf "$OPT"
    mkdir -p "$OPT"
    cp "$TASK/package.json" "$WORK/package.json"
    quietly npm install --prefix "$WORK" --no-audit --no-fund --ignore-scripts
    mv "$WORK/node_modules" "$OPT/"
    cp "$TASK/package.json" "$OPT/"
}

# one_commit TREE: a repository with one commit of everything and no trace of how it came to be
one_commit() {
    local -x HOME=$WORK GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
    local -x GIT_AUTHOR_NAME=ssebench GIT_AUTHOR_EMAIL=ssebench@example.org GIT_AUTHOR_DATE='2020-01-01T00:00:00Z'
    local -x GIT_COMMITTER_NAME=ssebench GIT_COMMITTER_EMAIL=ssebench@example.org
    local -x GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
    git init -q -b main --template= "$1"
    # A reflog would be a second place that names commits; the daemon refuses a tree that has one.
    git -C "$1" config core.logAllRefUpdates false
    git -C "$1" -c core.autocrlf=false -c gc.auto=0 add -A -f .
    git -C "$1" -c gc.auto=0 commit -q -m 'Initial commit'
}

# at_root FILE…: the paths of the image as they are below $ROOT
at_root() {
    [ -z "$ROOT" ] && return
    sed -i -E "s#(^|[^A-Za-z0-9_./-])/(src|ssebench|opt)/#\1${ROOT//[#&\\]/\\&}/\2/#g" "$@"
}

# lay_out PROJECT: what $TREE and the task's sse/ hold, as source tree, task files and clean clone
lay_out() {
    local source=$ROOT/src/$1 bench=$ROOT/ssebench clone=$ROOT/ssebench-repo
    rm -rf "$source" "$bench" "$clone"
    mkdir -p "$ROOT/src"
    chmod -R u+rwX,go+rX,go-w "$TREE"
    one_commit "$TREE"
    cp -a "$TREE" "$source"
    cp -a "$TREE" "$clone"

    mkdir -p "$bench/scripts"
    cp "$TASK/sse/config.yaml" "$bench/"
    install -m 755 "$TASK"/sse/*.sh "$bench/scripts/"
    cp -r "$TASK/sse/reports" "$TASK/sse/pocs" "$TASK/sse/diffs" "$bench/"
    at_root "$bench"/scripts/*.sh
    [ -z "$ROOT" ] || sed -i "s#^source: /#source: ${ROOT//[#&\\]/\\&}/#" "$bench/config.yaml"

    if [ "$(id -u)" = 0 ]; then
        chown -R root:root "$bench" "$clone"
        chown -R "${SSE_AGENT_USER:-model}:" "$source"
        # The tree under work is the agent's alone; what the grader uses is root's alone.
        chmod 700 "$bench" "$clone"
    fi
    echo "$ID: $source, $(git -C "$clone" ls-files | wc -l) files"
}
