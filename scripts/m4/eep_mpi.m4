# EEP_CHECK_MPI: Open MPI with ULFM, by the flags that its wrapper tells; or --without-mpi.
#
#   --with-mpi=DIR   use DIR/bin/mpicc
#   MPICC=...        use that wrapper
AC_DEFUN([EEP_CHECK_MPI], [
    AC_ARG_WITH([mpi],
        [AS_HELP_STRING([--with-mpi@<:@=DIR@:>@], [Open MPI 5 with ULFM (default: mpicc on PATH)])
AS_HELP_STRING([--without-mpi], [build a single-process eep])],
        [], [with_mpi=yes])
    AC_ARG_VAR([MPICC], [MPI's compiler wrapper])
    eep_mpi=no
    eep_mpi_summary="no (single process)"
    MPI_CFLAGS= MPI_LIBS= MPIRUN=
    AS_IF([test "x$with_mpi" != xno], [
        AS_IF([test "x$with_mpi" != xyes], [MPICC="$with_mpi/bin/mpicc"])
        AS_IF([test "x$MPICC" = x], [AC_PATH_PROG([MPICC], [mpicc])])
        AS_IF([test "x$MPICC" = x || test ! -x "`command -v $MPICC`"], [EEP_MPI_REFUSE([no mpicc was found])])
        MPICC=`command -v $MPICC`
        MPI_CFLAGS=`$MPICC --showme:compile 2>/dev/null`
        MPI_LIBS=`$MPICC --showme:link 2>/dev/null`
        AS_IF([test "x$MPI_LIBS" = x], [EEP_MPI_REFUSE([$MPICC is not Open MPI's])])
        eep_save_CFLAGS=$CFLAGS eep_save_LIBS=$LIBS
        CFLAGS="$CFLAGS $MPI_CFLAGS" LIBS="$MPI_LIBS $LIBS"
        AC_CACHE_CHECK([whether $MPICC has ULFM], [eep_cv_mpi_ulfm], [
            AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <mpi.h>
#include <mpi-ext.h>
]], [[MPI_Comm c = MPI_COMM_NULL; int flag = 0;
return MPIX_Comm_shrink(c, &c) + MPIX_Comm_agree(c, &flag) + MPIX_Comm_revoke(c);]])],
                [eep_cv_mpi_ulfm=yes], [eep_cv_mpi_ulfm=no])])
        CFLAGS=$eep_save_CFLAGS LIBS=$eep_save_LIBS
        AS_IF([test "x$eep_cv_mpi_ulfm" != xyes],
            [EEP_MPI_REFUSE([the MPI of $MPICC has no ULFM (MPIX_Comm_shrink in mpi-ext.h)])])
        eep_mpi=yes
        MPIRUN="`dirname $MPICC`/mpirun"
        eep_mpi_summary="$MPICC"
        AC_DEFINE([EEP_HAVE_MPI], [1], [Built with MPI])
    ])
    AC_SUBST([MPI_CFLAGS])
    AC_SUBST([MPI_LIBS])
    AC_SUBST([MPIRUN])
    AM_CONDITIONAL([EEP_MPI], [test $eep_mpi = yes])
])

AC_DEFUN([EEP_MPI_REFUSE], [
    AC_MSG_ERROR([$1.
eep needs Open MPI 5 with ULFM (fault tolerance). Three ways out:
  1. run scripts/setup: it installs one, in a private folder of the build tree if need be;
  2. name one: ./configure --with-mpi=DIR (DIR/bin/mpicc), Open MPI 5.0.10 or later;
  3. build for a single process: ./configure --without-mpi])
])
