#!/usr/bin/env bash
# Writes the clients' code from the protocol's file and builds the drivers in the cache; prints where they are. Quick when done.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}
place=$cache/native
python=$cache/venv/bin/python
protocol=$here/../../crates/duramen/proto/duramen/v1/duramen.proto
# google.rpc, from PyPI.
google=$("$python" -c 'import google.rpc, pathlib; print(pathlib.Path(list(google.rpc.__path__)[0]).parents[1])')

# google.protobuf, which the protoc of Maven does not bring.
well_known=$("$python" -c 'import grpc_tools, pathlib; print(pathlib.Path(grpc_tools.__file__).parent / "_proto")')

version=$(cat "$protocol" "$here"/build.sh "$here"/requirements.txt "$here"/{go,java,node,rust,grpcurl}/*.* "$here"/rust/src/* | sha256sum)
if [ "$(cat "$place/.complete" 2>/dev/null)" = "$version" ]; then
    echo "$place"
    exit
fi
rm -rf "$place"/{proto,python,.complete}
mkdir -p "$place"/{proto/duramen/v1,python,java,go/bin,node}
cp "$protocol" "$place/proto/duramen/v1/"
generate() { "$python" -m grpc_tools.protoc -I "$place/proto" -I "$google" "$@" duramen/v1/duramen.proto >&2; }

generate --python_out "$place/python" --grpc_python_out "$place/python"

(cd "$here/grpcurl" && go build -o "$place/grpcurl" github.com/fullstorydev/grpcurl/cmd/grpcurl)

cp "$here"/go/* "$place/go/"
cd "$place/go"
go build -o bin google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
module=duramen/compat/native
generate --plugin protoc-gen-go=bin/protoc-gen-go --go_out . --go_opt "module=$module,Mduramen/v1/duramen.proto=$module/gen/duramenv1" \
    --plugin protoc-gen-go-grpc=bin/protoc-gen-go-grpc --go-grpc_out . --go-grpc_opt "module=$module,Mduramen/v1/duramen.proto=$module/gen/duramenv1"
go build -o bin/driver .

cd "$place/java"
rm -rf libs sources classes
mkdir sources
mvn -q -B -f "$here/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$PWD/libs" "-Dprotoc.machine=linux-$(uname -m | sed s/aarch64/aarch_64/)" >&2
protoc=$(echo libs/protoc-[0-9]*.exe) plugin=$(echo libs/protoc-gen-grpc-java-*.exe)
chmod +x "$protoc" "$plugin"
"$protoc" -I "$place/proto" -I "$well_known" --java_out sources --plugin "protoc-gen-grpc-java=$plugin" --grpc-java_out sources duramen/v1/duramen.proto >&2
find sources -name "*.java" -print0 | xargs -0 javac -nowarn -d classes -cp "libs/*" "$here/java/Driver.java" >&2

cd "$place/node"
rm -rf gen sources
mkdir sources
cp "$here"/node/* .
npm install --silent --no-audit --no-fund >&2
generate --plugin protoc-gen-ts=node_modules/.bin/protoc-gen-ts --ts_out sources \
    --ts_opt generate_dependencies,long_type_string,client_generic,ts_nocheck google/rpc/status.proto google/rpc/error_details.proto
find sources -name '*.ts' -exec node_modules/.bin/tsc --module commonjs --target es2020 --noResolve --typeRoots none --rootDir sources --outDir gen {} + >&2

# Clones share the cache, and the protocol's file of each has times of its own.
DURAMEN_PROTOCOL=${version%% *} cargo build --quiet --locked --manifest-path "$here/rust/Cargo.toml" --target-dir "$place/rust" >&2

echo "$version" >"$place/.complete"
echo "$place"
