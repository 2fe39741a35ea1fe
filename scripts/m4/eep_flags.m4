# EEP_CHECK_FLAGS: warnings and the flags that the "same bits" promise needs.
# The user's CFLAGS are never touched; ours are in EEP_CFLAGS.
AC_DEFUN([EEP_CHECK_FLAG], [
    AC_CACHE_CHECK([whether $CC takes $1], [AS_TR_SH([eep_cv_flag_$1])], [
        eep_save_CFLAGS=$CFLAGS
        CFLAGS="$CFLAGS -Werror $1"
        AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
            [AS_TR_SH([eep_cv_flag_$1])=yes], [AS_TR_SH([eep_cv_flag_$1])=no])
        CFLAGS=$eep_save_CFLAGS
    ])
    AS_IF([test "x$AS_TR_SH([eep_cv_flag_$1])" = xyes], [$2], [$3])
])

AC_DEFUN([EEP_CHECK_FLAGS], [
    EEP_CFLAGS=
    m4_foreach_w([eep_flag],
        [-std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
         -Wwrite-strings -Wundef -Wpointer-arith -Wno-format-truncation -fvisibility=hidden -fno-math-errno],
        [EEP_CHECK_FLAG(m4_defn([eep_flag]), [EEP_CFLAGS="$EEP_CFLAGS eep_flag"])])
    # Contraction would let the compiler choose where to round: never.
    EEP_CHECK_FLAG([-ffp-contract=off], [EEP_CFLAGS="$EEP_CFLAGS -ffp-contract=off"],
        [AC_MSG_ERROR([the C compiler does not take -ffp-contract=off, which the same bits need])])
    AC_SUBST([EEP_CFLAGS])
    AC_ARG_ENABLE([werror],
        [AS_HELP_STRING([--enable-werror], [treat warnings as errors])],
        [AS_IF([test "x$enableval" = xyes], [EEP_CFLAGS="$EEP_CFLAGS -Werror"])])
])
