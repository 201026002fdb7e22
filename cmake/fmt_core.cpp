// fmt's formatting, compiled once. The other units include <fmt/core.h>, which only declares it: half the compile time
// of each, and no shared library that a program would have to find where it runs.
#include <fmt/format-inl.h>

// The templates that fmt's own library instantiates.
FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
