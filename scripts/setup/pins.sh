# shellcheck shell=bash disable=SC2034
# What the project is built from: versions, and the hashes that prove them.
# Every other setup script reads its numbers from here.

# llama.cpp, as the git bundle inside the npm package node-llama-cpp.
LLAMA_VERSION=v0.5.0
LLAMA_COMMIT=de3ff815ea7d559ee917f063901b8986f038abc6
LLAMA_TREE=fd570ef54b10ec5fecb739e7e04c8ce44a6f415a
LLAMA_PACKAGE=node-llama-cpp@3.22.1
LLAMA_TARBALL=node-llama-cpp-3.22.1.tgz
LLAMA_TARBALL_SHA256=a0d9dd80eacd2ab1cfe71aee57ac8a806487fd70b3d2a38fbec637752d9e5c5f
LLAMA_BUNDLE=package/llama/gitRelease.bundle
LLAMA_BUNDLE_SHA256=5f5d1105d5df040738d87b8290e5d17e7362131cdcfdb0831618e0ea528b4a51

# The ggml inside it. The backend uses ggml's internal interface, which changes without
# notice, so exactly this version is supported.
GGML_VERSION=0.25.1
GGML_API_VERSION=2

# ggml-vulkan of the same release, prebuilt.
VULKAN_PACKAGE=@node-llama-cpp/linux-x64-vulkan@3.22.1
VULKAN_TARBALL=node-llama-cpp-linux-x64-vulkan-3.22.1.tgz
VULKAN_TARBALL_SHA256=e10577190fc4bd1649d3b655588e5c7a85fc6b6dbf7136fee596cbe9e25521e7
VULKAN_LIB=package/bins/linux-x64-vulkan/libggml-vulkan.so

# Node. llama.cpp's web page and node-llama-cpp need 20.19 or newer; Debian 12 has 18.
# An older system Node is used only to fetch this one.
NODE_MIN_MAJOR=20
NODE_MIN_MINOR=19
NODE_VERSION=22.23.5
NODE_X64_SHA256=2e77fcc6b99a29e82643e27ae8970b168c99e5d74718705c085f8136e605c858
NODE_ARM64_SHA256=24e6eddf51ced457b50498f3e35e3d4ea0c1479fa50b7e100d8332fe0bf1a117
NPM_VERSION=10.9.9
NPM_SHA256=c80bd097147cce32e31010b791bab8c71a26a5e10668210ec9d2e7f4c7cea2a1

# node-llama-cpp and playwright-core, with everything they depend on, are pinned by the lock
# files in scripts/setup/npm/.
