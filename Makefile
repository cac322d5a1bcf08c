# Lambda, and checks that need more than Rust, one command each. `cargo run` and `cargo test` need none of this.

.PHONY: build release release-test measure bench-peers e2e console template lint-ci rollback openapi schemathesis spectral deny python-agent contract-dynamodb-local contract-ministack contract-localstack

# ARCH=arm64 fetches the Rust target aarch64-unknown-linux-gnu first; deploy it with Architecture=arm64.
ARCH ?= x86_64
PYTHON ?= python3
FUNCTIONS := submit scheduler agent supervisor operator
TOOLS := target/build-tools
TARGET_x86_64 := --x86-64
TARGET_arm64 := --arm64

# Without jitter entropy: gathering it takes a process some 50 ms before its first TLS handshake, and on Lambda's processors
# the instruction RDRAND is there beside the kernel's source (aws-lc-rs, issue 899).
# The five functions, at target/lambda/NAME/bootstrap, where template.yaml takes them from.
build: $(TOOLS)/requirements.txt
	AWS_LC_SYS_NO_JITTER_ENTROPY=1 PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" cargo lambda build --profile lambda --locked $(TARGET_$(ARCH)) \
	    --lambda-dir target/lambda --features lambda $(foreach f,$(FUNCTIONS),--package $(f))

$(TOOLS)/requirements.txt: infra/lambda/requirements.txt
	rm -rf $(TOOLS)
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check -r $<
	cp $< $@

VERSION ?= v$(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$$/\1/p' Cargo.toml)
# Archives of command line and functions with checksums and bills of materials, in target/archives. KEY=FILE signs them, with a key of
# ssh-keygen. Needs cargo-cyclonedx.
release: build
	cargo build --profile dist --locked --package stepwarden
	ARCH=$(ARCH) .ci/release pack $(VERSION) $(if $(KEY),--key $(KEY)) $(if $(TRIAL),--trial)

# Those archives as a user meets them: verified, unpacked, and deployed to an emulator without Rust, up to the first order.
release-test:
	tests/release/run

# Sizes, cold starts and memory of the binaries of `make build`.
measure:
	tests/lambda/run

# Stepwarden, Restate and DBOS on the same work on this machine, in turn; ROUNDS=1 gives a first impression.
bench-peers:
	tests/bench/run --rounds $(or $(ROUNDS),5)

# template.yaml and those binaries in an emulator, with faults.
e2e:
	tests/e2e/run

# The operator's console in Chromium, over the local system.
console:
	tests/console/run

# Lints and checks of template.yaml.
template:
	tests/template/run

# Lints of .github/workflows.
lint-ci:
	tests/ci/run

# Back to an older version, by default the last release, and forward again, with open orders.
rollback:
	tests/rollback/run

# Generates docs/openapi.json from the types.
openapi:
	UPDATE=1 cargo test --quiet --package stepwarden-tests --test whole openapi::the_document

# Requests made from that document against the local system, by schemathesis.
schemathesis:
	tests/schemathesis/run

# Checks that document against the rules of spectral:oas. Needs Node.js 20 or newer and, the first time, npm.
spectral:
	npx --yes @stoplight/spectral-cli@6.16.3 lint docs/openapi.json --ruleset tests/openapi/spectral.yaml --fail-severity hint

# Licences, sources and known advisories of all dependencies: cargo install cargo-deny --locked
deny:
	cargo deny check

# The agent in Python beside the local system: killed at work and restarted.
python-agent:
	tests/agents/run

# The contract suite of the adapters against endpoints other than the embedded ones.
contract-dynamodb-local contract-ministack contract-localstack: contract-%:
	tests/contract/run $*
