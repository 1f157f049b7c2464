// Numbers with large exponents in runs of floats, found without arithmetic on them.

#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <type_traits>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
// The loader picks the version for the processor: the library may be used on another one.
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace {

template <class Word, int MANTISSA>
struct Format {
  using Type = Word;
  static constexpr Word TOP = Word(Word(1) << (sizeof(Word) * 8 - 1));  // the sign bit
  static constexpr Word FULL = Word(TOP - (Word(1) << MANTISSA));       // the exponent of NaN and Inf
  static constexpr int SPECIAL = int(FULL >> MANTISSA);
  static constexpr int BIAS = SPECIAL / 2;  // the exponent of 1
  static constexpr int BITS = MANTISSA;
};

using F64 = Format<uint64_t, 52>;
using F32 = Format<uint32_t, 23>;
using F16 = Format<uint16_t, 10>;
using BF16 = Format<uint16_t, 7>;

// Whether a word has an exponent that carries into the sign bit when `added` is added to it.
template <class F>
[[gnu::always_inline]] inline typename F::Type carried(const typename F::Type* words, int64_t count, typename F::Type added) {
  using Word = typename F::Type;
  Word all = 0;
  for (int64_t i = 0; i < count; ++i) all |= Word((words[i] & F::FULL) + added);
  return all & F::TOP;
}

FOR_EACH_PROCESSOR bool carries_f64(const uint64_t* words, int64_t count, uint64_t added) {
  return carried<F64>(words, count, added) != 0;
}
FOR_EACH_PROCESSOR bool carries_f32(const uint32_t* words, int64_t count, uint32_t added) {
  return carried<F32>(words, count, added) != 0;
}
FOR_EACH_PROCESSOR bool carries_f16(const uint16_t* words, int64_t count, uint16_t added) {
  return carried<F16>(words, count, added) != 0;
}
FOR_EACH_PROCESSOR bool carries_bf16(const uint16_t* words, int64_t count, uint16_t added) {
  return carried<BF16>(words, count, added) != 0;
}

// Whether the exponent of a word is `exponent` or more, as the format stores it.
template <class F>
bool reaches(const typename F::Type* words, int64_t count, int exponent) {
  using Word = typename F::Type;
  const Word added = Word(F::TOP - Word(Word(exponent) << F::BITS));
  if constexpr (std::is_same_v<F, F64>) return carries_f64(words, count, added);
  else if constexpr (std::is_same_v<F, F32>) return carries_f32(words, count, added);
  else if constexpr (std::is_same_v<F, F16>) return carries_f16(words, count, added);
  else return carries_bf16(words, count, added);
}

// Whether a word is NaN or Inf.
template <class F>
bool has_special(const typename F::Type* words, int64_t count) {
  return reaches<F>(words, count, F::SPECIAL);
}

// Whether a tensor has numbers in host memory: not a fake one or one of torch.func.
bool readable(const c10::TensorImpl& tensor) {
  const auto keys = tensor.key_set();
  return keys.has(c10::DispatchKey::CPU) && !keys.has(c10::DispatchKey::Python) && tensor.has_storage() &&
      !tensor.has_symbolic_sizes_strides() && tensor.layout() == c10::kStrided && tensor.numel() > 0 &&
      tensor.unsafe_storage().data() != nullptr;
}

}  // namespace
