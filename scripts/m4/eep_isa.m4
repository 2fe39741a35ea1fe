# EEP_CHECK_ISA: which instruction sets the kernels can be built for. Which one runs is decided at
# run time by what the processor has.
AC_DEFUN([EEP_CHECK_ISA], [
    eep_isa_list=ref
    eep_avx2=no eep_avx512=no eep_neon=no
    AS_CASE([$host_cpu],
        [x86_64|amd64], [
            EEP_CHECK_FLAG([-mavx2], [eep_avx2=yes])
            EEP_CHECK_FLAG([-mavx512f], [eep_avx512=yes])],
        [aarch64|arm64], [eep_neon=yes])
    AS_IF([test $eep_avx2 = yes], [eep_isa_list="$eep_isa_list avx2"
        AC_DEFINE([EEP_HAVE_AVX2], [1], [AVX2 kernels are built])])
    AS_IF([test $eep_avx512 = yes], [eep_isa_list="$eep_isa_list avx512"
        AC_DEFINE([EEP_HAVE_AVX512], [1], [AVX-512 kernels are built])])
    AS_IF([test $eep_neon = yes], [eep_isa_list="$eep_isa_list neon"
        AC_DEFINE([EEP_HAVE_NEON], [1], [NEON kernels are built])])
    AM_CONDITIONAL([EEP_AVX2], [test $eep_avx2 = yes])
    AM_CONDITIONAL([EEP_AVX512], [test $eep_avx512 = yes])
    AM_CONDITIONAL([EEP_NEON], [test $eep_neon = yes])
])
