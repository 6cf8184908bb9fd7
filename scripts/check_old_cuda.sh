#!/usr/bin/env bash
# Compiles every CUDA kernel with an older toolkit, and links the smallest library. Debian carries two: 11.8 (bookworm, with
# g++ 11) and 12.4 (trixie). They are unpacked into a folder of their own, about 1 GB to fetch; nothing is installed.
#   scripts/check_old_cuda.sh [bookworm|trixie] [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-bookworm}
folder=$(realpath -m "${2:-build/cuda_$suite}")
case $suite in
  bookworm) compiler=g++-11 extra=(g++-11 gcc-11 cpp-11 libstdc++-11-dev libgcc-11-dev) ;;
  trixie) compiler='' extra=() ;;
  *) sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
root=$folder/root toolkit=$folder/toolkit

if [[ ! -x $toolkit/bin/nvcc ]]; then
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  mkdir -p "$folder"/{sources,lists/partial,cache/archives/partial} "$root"
  # The machine's own mirror and keys, for this release and with non-free.
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    [[ -f $file ]] && sed -E "s/\b${codename:-$suite}\b/$suite/g; s/^Components:.*/Components: main contrib non-free/; /^deb /s/\bmain\b.*/main contrib non-free/" \
      "$file" > "$folder/sources/$(basename "${file/sources.list/main.list}")"
  done
  options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$folder/sources" -o "Dir::State::lists=$folder/lists"
    -o "Dir::Cache=$folder/cache" -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o APT::Default-Release= -o Acquire::Languages=none -o APT::Sandbox::User=)
  apt-get "${options[@]}" update > "$folder/log" 2>&1 || true  # what counts is whether the download works
  (cd "$folder" && apt-get "${options[@]}" download nvidia-cuda-toolkit nvidia-cuda-dev "${extra[@]}")
  for package in "$folder"/*.deb; do
    case $package in
      # Hundreds of megabytes of other libraries are in this one.
      */nvidia-cuda-dev_*) dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --wildcards './usr/include/*' '*/libcudart*' '*/libcudadevrt*' ;;
      *) dpkg-deb -x "$package" "$root" ;;
    esac
  done
  rm "$folder"/*.deb
  # As NVIDIA lays it out, which CMake and nvcc look for.
  debian=$root/usr/lib/nvidia-cuda-toolkit
  mkdir -p "$toolkit"/{bin,lib64,nvvm}
  cp -L "$root"/usr/bin/{cudafe++,ptxas,fatbinary,nvlink,bin2c,cuobjdump,__nvcc_device_query} "$toolkit/bin/"
  cp -rL "$debian/bin/crt" "$toolkit/bin/"
  mkdir -p "$toolkit/nvvm/bin"
  cp "$debian/bin/cicc" "$toolkit/nvvm/bin/"
  cp -r "$debian/libdevice" "$toolkit/nvvm/libdevice"
  ln -s "$root/usr/include" "$toolkit/include"
  ln -sf "$root"/usr/lib/*-linux-gnu/libcuda* "$toolkit/lib64/"
  [[ -e $toolkit/lib64/libcudart.so ]] || ln -sf libcudart_static.a "$toolkit/lib64/libcudart.so"  # CMake wants the name only
  printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' 'PATH += $(TOP)/nvvm/bin:$(_HERE_):' \
    'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' 'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"' > "$toolkit/bin/nvcc.profile"
  # g++'s link to the shared library leads out of this folder.
  [[ -z $compiler ]] || ln -sf "$(g++ -print-file-name=libstdc++.so.6)" "$(g++ -print-file-name=libgcc_s.so.1)" "$root"/usr/lib/*-linux-gnu/
  cp "$debian/bin/nvcc" "$toolkit/bin/"
fi

cmake -G Ninja -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DOPBRIDGE_CUDA=ON -DCUDAToolkit_ROOT="$toolkit" \
  ${compiler:+-DCMAKE_CUDA_HOST_COMPILER="$root/usr/bin/$compiler"} -DOPBRIDGE_CUDA_ARCHITECTURES="80;90" -DOPBRIDGE_WERROR=ON \
  -DOPBRIDGE_TESTS=OFF -DOPBRIDGE_TOOLS=OFF
mapfile -t kernels < <(ninja -C "$folder/build" -t targets all | grep -o '^ops/.*\.cu\.o')
ninja -C "$folder/build" lib/libmy_custom_ops.so "${kernels[@]}"
echo "${#kernels[@]} sources compiled with $("$toolkit/bin/nvcc" --version | grep release)"
