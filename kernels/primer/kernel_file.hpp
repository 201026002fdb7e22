#pragma once

/// What a kernel's file is made of. It has three parts, and each is compiled apart with one of these set to 1:
///
///   WM_PRIMER_DESCRIBES  `Kernel describe()`: formula, shapes, operands and the result's elements in fp64
///   WM_PRIMER_CPU        `void run(const Problem&, const Arguments&)`: once for each instruction set, on
///   detail/cpu.hpp WM_PRIMER_CUDA       `void run(const Problem&, const Arguments&, StreamView)`: on cuda/toolbox.cuh
///
/// All stand in the namespace warpmeter::primer::NAME::WM_PRIMER_PART, NAME the file's own.
#ifndef WM_PRIMER_DESCRIBES
#define WM_PRIMER_DESCRIBES 0
#endif
#ifndef WM_PRIMER_CPU
#define WM_PRIMER_CPU 0
#endif
#ifndef WM_PRIMER_CUDA
#define WM_PRIMER_CUDA 0
#endif

#if WM_PRIMER_CPU
#define WM_PRIMER_PART WM_ISA
#include "kernels/primer/detail/cpu.hpp"
#elif WM_PRIMER_CUDA
#define WM_PRIMER_PART cuda
#include "kernels/primer/cuda/add_parts.cuh"
#include "kernels/primer/cuda/toolbox.cuh"
#else
#define WM_PRIMER_PART host
#include "kernels/primer/kernel.hpp"
#endif
