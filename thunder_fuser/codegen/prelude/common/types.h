// provides: i64 i32 i16 i8 u8 u16 u32 u64 Unsigned is_signed_type
// needs:
typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
// The unsigned type of the same width: arithmetic on it wraps where the signed one is undefined.
template <typename T> struct Unsigned { using type = T; };
template <> struct Unsigned<i64> { using type = u64; };
template <> struct Unsigned<i32> { using type = u32; };
template <> struct Unsigned<i16> { using type = u16; };
template <> struct Unsigned<i8> { using type = u8; };
template <typename T> constexpr bool is_signed_type = true;
template <> constexpr bool is_signed_type<u8> = false;
template <> constexpr bool is_signed_type<bool> = false;
