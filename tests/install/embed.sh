#!/usr/bin/env bash
# make install, build a program against it by pkg-config, run it, make uninstall: nothing is left.
set -euo pipefail
: "${EEP_SRC:?}" "${EEP_BUILD:?}"

model=$EEP_SRC/tests/data/tiny-qwen3-moe
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig

# eep.pc holds the prefix that configure was given; this installation lies elsewhere.
flags()
{
    pkg-config --define-variable=prefix="$prefix" "$@" eep
}

make --no-print-directory -s -C "$EEP_BUILD" install prefix="$prefix" >/dev/null
find "$prefix" -type f | LC_ALL=C sort | sed "s|^$prefix/|installed |"

# Each public header alone, strictly, and as C++ where there is a compiler.
for header in "$prefix"/include/eep/*.h; do
    echo "#include <eep/${header##*/}>" >"$prefix/header.c"
    # shellcheck disable=SC2046 # words
    gcc -std=c11 -pedantic -Wall -Wextra -Werror -fsyntax-only $(flags --cflags) \
        "$prefix/header.c"
    if command -v g++ >/dev/null; then
        # shellcheck disable=SC2046 # words
        g++ -x c++ -Wall -Wextra -Werror -fsyntax-only $(flags --cflags) "$prefix/header.c"
    fi
done

# shellcheck disable=SC2046 # words
gcc -Wall -Wextra -Werror -o "$prefix/embed" "$EEP_SRC/tests/install/embed.c" \
    $(flags --cflags --libs) -Wl,-rpath,"$prefix/lib"
embedded=$("$prefix/embed" "$model" | paste -sd,)
echo "embedded: $embedded"

# The installed program answers the same, and the version is the package's.
installed=$("$prefix/bin/eep" generate --model "$model" --prompt-ids 1,2,3 --max-tokens 8 \
    --ignore-eos --json)
case $installed in
    *"\"token_ids\":[$embedded]"*) ;;
    *) echo "eep generate answers otherwise: $installed" && exit 1 ;;
esac
"$prefix/bin/eep" --version | grep -qF "$(pkg-config --modversion eep)"
if "$prefix/embed" "$prefix" 2>"$prefix/refused"; then
    echo "a directory without a checkpoint was not refused"
    exit 1
fi
cat "$prefix/refused"

rm -f "$prefix/embed" "$prefix/header.c" "$prefix/refused"
make --no-print-directory -s -C "$EEP_BUILD" uninstall prefix="$prefix" >/dev/null
left=$(find "$prefix" -type f)
if [ -n "$left" ]; then
    echo "uninstall left: $left"
    exit 1
fi
