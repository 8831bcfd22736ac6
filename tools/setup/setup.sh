# shellcheck shell=bash
# Brings in Debian packages and Python wheels; sourced by ./dev, which stands in the root and gives `say` and `fail`.

setup_python() {
  # Debian's own Python first: python3-venv belongs to it, and a version manager's python3 may come and go.
  if [[ -n "${TESSERA_PYTHON:-}" ]]; then
    echo "$TESSERA_PYTHON"
  elif [[ -x /usr/bin/python3 ]]; then
    echo /usr/bin/python3
  else
    command -v python3 || fail "no python3 here; install Debian's python3 and python3-venv, or set TESSERA_PYTHON"
  fi
}

listed() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@"; }

missing_packages() {
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
  listed "$@" | grep -vxF -f <(printf '%s\n' "$installed") || true
}

install_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is no Debian system: packages are left to you; needed are (Debian's names): $(listed "$@" | tr '\n' ' ')"
    return
  fi
  local missing as_root=()
  missing=$(missing_packages "$@")
  [[ -n "$missing" ]] || return 0
  local -a names
  mapfile -t names <<<"$missing"
  local by_hand="apt-get install ${names[*]}"
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || fail "these Debian packages are missing, and there is no sudo to install them with: ${names[*]}" \
      "as root: $by_hand"
    as_root=(sudo)
  fi
  say "installing ${#names[@]} Debian packages: ${names[*]}"
  local -a apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  local log=build/setup.log
  mkdir -p build
  # A package list that is there may already be fresh enough; only a failure is worth the update's time.
  if ! "${apt[@]}" install -y --no-install-recommends "${names[@]}" >"$log" 2>&1; then
    say "refreshing the package lists"
    "${apt[@]}" update >>"$log" 2>&1 || true
    "${apt[@]}" install -y --no-install-recommends "${names[@]}" >>"$log" 2>&1 || {
      tail -n 5 "$log" >&2
      fail "these Debian packages could not be installed: ${names[*]}" \
        "without a network, bring them from another machine (apt-get download, then dpkg -i), or as root: $by_hand" \
        "the whole output: build/setup.log"
    }
  fi
}

# Old virtual environments without pip, or of a Python that has gone, are made anew.
make_environment() {
  if [[ -x .venv/bin/python ]] && .venv/bin/python -m pip --version >/dev/null 2>&1; then return; fi
  local python
  python=$(setup_python)
  say "making .venv with $python ($("$python" -V 2>&1))"
  rm -rf .venv
  "$python" -m venv .venv >build/setup.log 2>&1 || {
    tail -n 5 build/setup.log >&2
    fail "$python cannot make a virtual environment" "Debian's package python3-venv gives it, or set TESSERA_PYTHON to another Python"
  }
}

# install_wheels INDEX WHEEL FILE...: what the requirements files pin and .venv lacks. INDEX and WHEEL may be empty.
install_wheels() {
  local index=$1 wheel=$2
  shift 2
  mkdir -p build
  make_environment
  local pip=(.venv/bin/python -m pip install --disable-pip-version-check --no-input -qq --log build/pip.log)
  local unmet
  unmet=$(.venv/bin/python tools/setup/unmet_wheels.py "$@")
  if [[ -n "$wheel" ]]; then
    [[ -f "$wheel" ]] || fail "no such wheel: $wheel"
    say "installing $(basename "$wheel")"
    "${pip[@]}" "$wheel" || fail "pip could not install $wheel" "the whole output: build/pip.log"
  elif [[ -n "$index" && "$unmet" == *torch==* ]]; then
    say "installing torch from $index"
    "${pip[@]}" --index-url "$index" "$(grep -h '^torch==' "$@")" || fail "pip could not get torch from $index" "the whole output: build/pip.log"
  fi
  unmet=$(.venv/bin/python tools/setup/unmet_wheels.py "$@")
  if [[ -n "$unmet" ]]; then
    local -a names
    mapfile -t names <<<"$unmet"
    say "installing Python wheels into .venv: ${names[*]}"
    rm -f build/pip.log
    "${pip[@]}" "${names[@]}" || fail "pip could not install: ${names[*]}" \
      "without a network, put the wheels into a folder and set PIP_FIND_LINKS to it" \
      "for torch alone: ./dev setup --torch-wheel FILE, or --torch-index URL for an index that serves another build of it" \
      "the whole output: build/pip.log"
  fi
}

# setup_stage STAGE INDEX WHEEL: STAGE is run or test; does nothing when it was done with the same lists before.
setup_stage() {
  local stage=$1 index=$2 wheel=$3
  local stages=(run)
  [[ $stage == run ]] || stages+=(test)
  local lists=() requirements=() name
  for name in "${stages[@]}"; do
    lists+=("tools/setup/packages-$name.txt")
    requirements+=("tools/setup/requirements-$name.txt")
  done
  local stamp=.venv/.setup-$stage wanted
  wanted=$(cat "${lists[@]}" "${requirements[@]}" | cksum)
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then return; fi
  mkdir -p build
  (
    flock 9
    install_packages "${lists[@]}"
    install_wheels "$index" "$wheel" "${requirements[@]}"
    echo "$wanted" >"$stamp"
  ) 9>build/.setup-lock
}
