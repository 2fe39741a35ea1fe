# EEP_CHECK_MPI: Open MPI with ULFM, by the flags that its wrapper tells; or --without-mpi.
#
#   --with-mpi=DIR   use DIR/bin/mpicc
#   MPICC=...        use that wrapper
#
# By default the mpicc on PATH, else the one that scripts/setup put into the build directory; one that
# is older than 5.0.10 only when there is no other.
AC_DEFUN([EEP_CHECK_MPI], [
    AC_ARG_WITH([mpi],
        [AS_HELP_STRING([--with-mpi@<:@=DIR@:>@], [Open MPI 5 with ULFM in DIR (default: mpicc on PATH)])
AS_HELP_STRING([--without-mpi], [build a single-process eep])],
        [], [with_mpi=yes])
    AC_ARG_VAR([MPICC], [MPI's compiler wrapper])
    eep_mpi=no
    eep_mpi_summary="no (single process)"
    MPI_CFLAGS= MPI_LIBS= MPI_LDFLAGS= MPIRUN=
    AS_IF([test "x$with_mpi" != xno], [
        eep_mpi_trouble="no mpicc was found"
        AS_IF([test "x$with_mpi" != xyes], [eep_mpi_wrappers="$with_mpi/bin/mpicc"],
              [test "x$MPICC" != x], [eep_mpi_wrappers=$MPICC],
              [eep_mpi_wrappers="mpicc `pwd`/openmpi/bin/mpicc mpicc"])
        eep_mpi_left=0
        for eep_mpicc in $eep_mpi_wrappers; do eep_mpi_left=`expr $eep_mpi_left + 1`; done
        for eep_mpicc in $eep_mpi_wrappers; do
            eep_mpi_left=`expr $eep_mpi_left - 1`
            AS_IF([test $eep_mpi = no], [EEP_TRY_MPICC([$eep_mpicc])])
        done
        AS_IF([test $eep_mpi = no], [EEP_MPI_REFUSE([$eep_mpi_trouble])])
        # libtool does not hand these on from a convenience library: where to find MPI at run time.
        for eep_word in $MPI_LIBS; do
            AS_CASE([$eep_word], [-Wl,*], [MPI_LDFLAGS="$MPI_LDFLAGS $eep_word"])
        done
        AC_DEFINE([EEP_HAVE_MPI], [1], [Built with MPI])
        AC_DEFINE_UNQUOTED([EEP_MPIRUN], ["$MPIRUN"], [The launcher that belongs to it])
    ])
    AC_SUBST([MPI_CFLAGS])
    AC_SUBST([MPI_LIBS])
    AC_SUBST([MPI_LDFLAGS])
    AC_SUBST([MPIRUN])
    AM_CONDITIONAL([EEP_MPI], [test $eep_mpi = yes])
])

# EEP_TRY_MPICC(WRAPPER): sets eep_mpi=yes and what belongs to it, or eep_mpi_trouble.
AC_DEFUN([EEP_TRY_MPICC], [
    AC_MSG_CHECKING([whether $1 is Open MPI's and has ULFM])
    eep_mpi_path=`command -v $1`
    AS_IF([test "x$eep_mpi_path" = x || test ! -x "$eep_mpi_path"], [
        AS_IF([test "x$eep_mpi_wrappers" = "x$1"], [eep_mpi_trouble="there is no $1"])
        AC_MSG_RESULT([not there])
    ], [
        eep_mpi_compile=`$eep_mpi_path --showme:compile 2>/dev/null` || eep_mpi_compile=
        eep_mpi_link=`$eep_mpi_path --showme:link 2>/dev/null` || eep_mpi_link=
        eep_save_CFLAGS=$CFLAGS eep_save_LIBS=$LIBS
        CFLAGS="$CFLAGS $eep_mpi_compile" LIBS="$eep_mpi_link $LIBS"
        AS_IF([test "x$eep_mpi_link" = x], [
            eep_mpi_trouble="$eep_mpi_path is not Open MPI's"
            AC_MSG_RESULT([no: not Open MPI's])
        ], [AC_LINK_IFELSE([AC_LANG_PROGRAM([[
#include <mpi.h>
#include <mpi-ext.h>
]], [[MPI_Comm c = MPI_COMM_NULL; int flag = 0;
return MPIX_Comm_shrink(c, &c) + MPIX_Comm_agree(c, &flag) + MPIX_Comm_revoke(c);]])], [
            eep_mpi_version=`$eep_mpi_path --showme:version 2>/dev/null | sed -n 's/.*Open MPI \(@<:@0-9.@:>@*@<:@0-9@:>@\).*/\1/p'`
            AS_VERSION_COMPARE([$eep_mpi_version], [5.0.10], [eep_mpi_old=yes], [eep_mpi_old=no], [eep_mpi_old=no])
            AS_IF([test $eep_mpi_old = no || test $eep_mpi_left = 0], [eep_mpi=yes])
            MPICC=$eep_mpi_path MPI_CFLAGS=$eep_mpi_compile MPI_LIBS=$eep_mpi_link
            MPIRUN="`dirname "$eep_mpi_path"`/mpirun"
            eep_mpi_summary="$eep_mpi_path, Open MPI $eep_mpi_version"
            AC_MSG_RESULT([yes, version $eep_mpi_version])
            AS_IF([test $eep_mpi_old = yes && test $eep_mpi = yes],
                [AC_MSG_WARN([Open MPI $eep_mpi_version: eep is tested with 5.0.10 and later])])
        ], [
            eep_mpi_trouble="the MPI of $eep_mpi_path has no ULFM (MPIX_Comm_shrink in mpi-ext.h)"
            AC_MSG_RESULT([no: no ULFM])
        ])])
        CFLAGS=$eep_save_CFLAGS LIBS=$eep_save_LIBS
    ])
])

AC_DEFUN([EEP_MPI_REFUSE], [
    AC_MSG_ERROR([$1.
eep needs Open MPI 5 with ULFM (fault tolerance). Three ways out:
  1. run scripts/setup: it installs one, in a private folder of the build tree if need be;
  2. name one: ./configure --with-mpi=DIR (DIR/bin/mpicc), Open MPI 5.0.10 or later;
  3. build for a single process: ./configure --without-mpi])
])
